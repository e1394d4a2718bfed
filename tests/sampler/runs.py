"""A data set of ids, losses that follow from the id and the epoch, and a loop that trains on nothing."""

import torch
from torch.utils.data import DataLoader

import selective_backprop as sb

SIZE = 203  # leaves a partial last batch


class Ids(torch.utils.data.Dataset):
    """Example i is the number i."""

    def __init__(self, size=SIZE):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def losses_of(ids, epoch, size=SIZE):
    """Losses of which few are large, other ones in each epoch."""
    return torch.rand(size, generator=torch.Generator().manual_seed(epoch))[ids] ** 6


def make(method=None, source=SIZE, **options):
    return sb.SelectiveSampler(source, method or sb.ledger_backprop(max_age=3), **options)


def load(sampler, *, loader=DataLoader, batch_size=16, size=SIZE, **options):
    return loader(Ids(size), batch_size=batch_size, sampler=sampler, **options)


def train(loader, sampler, epochs, *, on_step=lambda: None, losses=losses_of):
    """An ordinary loop over these epochs. Returns the ids and the weights of each batch."""
    batches = []
    for epoch in epochs:
        for ids in loader:
            weights = sampler.update(losses(ids, epoch))
            assert torch.equal(sampler.ids, ids), "losses go to their own examples"
            batches.append((ids.tolist(), weights.tolist()))
            on_step()
    return batches
