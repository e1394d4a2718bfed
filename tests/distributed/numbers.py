"""A task whose losses follow from id and epoch alone, to the bit, however examples are batched."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import selective_backprop as sb
from tests.distributed.runs import Ids


class Numbers(Dataset):
    """A data set in which example i is the number i."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Losses(nn.Module):
    """The loss of example i in an epoch: any number, other ones in other epochs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.epoch = 0

    def forward(self, values):
        return self.scale * ((values + 1).sqrt() * 7.3 * (self.epoch + 1) % 5)


def make(method, count, batches, *, epochs, data=None, **options):
    """A model, and a loader over these batches of ids."""
    model, loader_options = Losses(), options.pop("loader_options", {})
    loss_fn = options.pop("loss_fn", lambda outputs, targets: outputs)
    loss_fn = sb.losses.PerExampleLoss(loss_fn, reducer=options.pop("reducer", None))
    loader = sb.SelectiveLoader(
        DataLoader(data or Numbers(count), batch_sampler=batches, **loader_options),
        model,
        loss_fn,
        method,
        forward=lambda model, batch: (model(batch), None),
        num_epochs=epochs,
        **options,
    )
    return model, loader


def cut(ids, size):
    """Batches of this size."""
    return [list(part) for part in torch.utils.data.BatchSampler(Ids(ids), size, drop_last=False)]


def go_through(model, loader, epochs, on_step=lambda step: None):
    """Ids of every batch, by epoch."""
    given, steps = [], 0
    for epoch in range(loader.epoch, epochs):
        model.epoch = epoch
        given.append([])
        for values in loader:
            loader.loss(model(values), None).backward()
            assert values.tolist() == loader.batch.ids.tolist()
            given[-1].append(loader.batch.ids.tolist())
            steps += 1
            on_step(steps)
    return given
