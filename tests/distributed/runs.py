"""An ordinary DDP loop, with and without selection; run by every rank."""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import selective_backprop as sb
from tests.helpers import Noisy, make_model

BATCH, EPOCHS = 16, 3


class Ids:
    """A sampler that offers these, in this order."""

    def __init__(self, ids):
        self.ids = list(ids)

    def __iter__(self):
        return iter(self.ids)

    def __len__(self):
        return len(self.ids)


class Run:
    """A model on all ranks, its data, and a loader if there is a method."""

    def __init__(
        self, method=None, *, dataset=None, sampler=None, epochs=EPOCHS, wrap=DistributedDataParallel, **options
    ):
        torch.manual_seed(3 + dist.get_rank())  # of augmentation and dropout, which ranks draw by themselves
        dataset = dataset if dataset is not None else Noisy()
        loader_options = {"batch_size": BATCH} | options.pop("loader_options", {})
        self.model = wrap(options.pop("model", None) or make_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.sampler = sampler if sampler is not None else DistributedSampler(dataset, seed=1)
        self.epochs = epochs
        self.loader = train_loader = DataLoader(dataset, sampler=self.sampler, **loader_options)
        self.batches, self.weights, self.sizes = [], [], []
        if method is not None:
            self.loader = sb.SelectiveLoader(
                train_loader, self.model, nn.CrossEntropyLoss(), method, num_epochs=epochs, **options
            )

    def train_plainly(self):
        loss_fn, batches = nn.CrossEntropyLoss(), []
        for epoch in range(self.epochs):
            self.sampler.set_epoch(epoch)
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                loss_fn(self.model(inputs), targets).backward()
                self.optimizer.step()
                batches.append(inputs.clone())
        return batches

    def train(self, on_step=lambda step: None):
        for epoch in range(self.loader.epoch, self.epochs):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            self.sizes.append([])  # by epoch
            for inputs, targets in self.loader:
                self.sizes[-1].append(len(targets))
                self.optimizer.zero_grad()
                self.loader.loss(self.model(inputs), targets).backward()
                self.optimizer.step()
                self.batches.append(self.loader.batch.ids.tolist())
                self.weights.append(self.loader.batch.weights.tolist())
                on_step(len(self.batches))
        return self

    @property
    def parameters(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def save(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"rng": torch.get_rng_state()}, file)
        return file

    def load(self, file):
        file.seek(0)
        state = torch.load(file, weights_only=True)
        for name in ("model", "optimizer", "loader"):
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        return self
