"""Data, a model and a training loop that many tests share."""

import dataclasses
import functools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import selective_backprop as sb

NUM_DIGITS = 203  # leaves a partial last batch


@functools.cache
def digits(count: int = NUM_DIGITS) -> TensorDataset:
    """Real images."""
    from sklearn.datasets import load_digits  # here, because many processes start without a need for it

    data = load_digits()
    inputs = torch.tensor(data.data[:count], dtype=torch.float32) / 16
    return TensorDataset(inputs, torch.tensor(data.target[:count]))


class Noisy(Dataset):
    """Digits with random noise added when they are loaded, from torch's global generator: augmentation."""

    def __init__(self, count: int = NUM_DIGITS) -> None:
        self.inner = digits(count)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image + 0.1 * torch.randn_like(image), label


def make_model(seed: int = 0, inputs: int = 64, classes: int = 10) -> nn.Module:
    """BatchNorm and dropout, so that a scoring pass that leaves a trace is found out; one part is frozen."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(inputs, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, 16),
        nn.BatchNorm1d(16),
        nn.Linear(16, classes),
    )
    torch.set_rng_state(state)
    model[5].eval()
    return model


def make_loader(method, *, dataset=None, model=None, num_epochs=None, loader_options=None, **options):
    model = model if model is not None else make_model()
    settings = {"batch_size": 16, "shuffle": True} | (loader_options or {})
    train_loader = DataLoader(dataset if dataset is not None else digits(), **settings)
    return sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=num_epochs, **options)


def by_class(method, classes):
    """The same method, within each class. classes: one label per id."""
    return dataclasses.replace(method, policy=sb.policies.GroupedPolicy(method.policy), groups=classes)


def train(loader, model, epochs, *, optimizer=None, on_step=None):
    """An ordinary loop; returns the ids of every batch."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = []
    for _ in range(loader.epoch, epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            batches.append(loader.batch.ids.tolist() if loader.batch.ids is not None else None)
            if on_step is not None:
                on_step(len(batches), optimizer)
    return batches


def train_plainly(train_loader, model, epochs):
    """Plain training without the library. Selectivity 1 must give the same result."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    batches = []
    for _ in range(epochs):
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            optimizer.step()
            batches.append(inputs.clone())
    return batches


def all_rows(ledger):
    """All rows of a ledger, also where each rank holds a part of them."""
    return ledger.whole() if hasattr(ledger, "whole") else ledger


def wordnet_texts(folder, count=80):
    """A file like WordNet's, with definitions of two topics."""
    (folder / "wordnet").mkdir(parents=True)
    lines = [
        f"{number:08d} {5 if number % 2 else 13:02d} n 01 word{number} 0 000 @ 00000001 n 0000 | "
        f"{'an animal with' if number % 2 else 'a dish of'} <b>{number}</b> legs (or so)"
        for number in range(count)
    ]
    (folder / "wordnet" / "data.noun").write_text("\n".join(lines) + "\n")
    return folder
