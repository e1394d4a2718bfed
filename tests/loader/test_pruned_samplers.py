"""A diet with any sampler: how many batches, how far the epoch is, and nothing lost."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import selective_backprop as sb
from tests.helpers import digits, make_model

M = 203
SCORES = torch.arange(M).flip(0).float()  # a diet of one half keeps the first 101


class Grouped:
    """A batch sampler of the user's, with batches of different sizes."""

    def __iter__(self):
        yield from ([0, 61], [150, 151, 1], list(range(2, 40)), [200], list(range(40, 60)), [199, 198])

    def __len__(self):
        return 6


LOADERS = {
    "all of them": lambda: DataLoader(digits(), 16, shuffle=True),
    "a part": lambda: DataLoader(digits(), 16, sampler=SubsetRandomSampler(range(70))),
    "the kept part": lambda: DataLoader(digits(), 16, sampler=SubsetRandomSampler(range(33))),
    "mostly pruned": lambda: DataLoader(digits(), 16, sampler=SubsetRandomSampler([*range(5), *range(120, 200)])),
    "with replacement": lambda: DataLoader(digits(), 16, sampler=RandomSampler(digits(), replacement=True)),
    "twice": lambda: DataLoader(digits(), 16, sampler=RandomSampler(digits(), num_samples=M + 90)),
    "weighted": lambda: DataLoader(digits(), 16, sampler=WeightedRandomSampler([1.0] * 99 + [0.1] * 104, 90)),
    "of a rank": lambda: DataLoader(digits(), 16, sampler=DistributedSampler(digits(), num_replicas=2, rank=1)),
    "of a list": lambda: DataLoader(digits(), 16, sampler=list(range(0, M, 3))),
    "drop_last": lambda: DataLoader(digits(), 16, shuffle=True, drop_last=True),
    "batches": lambda: DataLoader(digits(), batch_sampler=BatchSampler(SequentialSampler(digits()), 16, True)),
    "groups": lambda: DataLoader(digits(), batch_sampler=Grouped()),
    "stateful": lambda: StatefulDataLoader(digits(), 16, shuffle=True),
}


@pytest.mark.parametrize(
    "method", [sb.traditional(), sb.ledger_backprop(), sb.random_backprop(1.0)], ids=lambda m: m.name
)
@pytest.mark.parametrize("name", LOADERS)
def test_batches_and_progress(name, method):
    torch.manual_seed(3)
    train_loader = LOADERS[name]()
    model = make_model()
    diet = sb.diet(method=method, scores=SCORES, prune=0.5)
    size = 16 if name == "groups" else None  # its batches do not tell
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), diet, num_epochs=2, batch_size=size)
    offered = 0
    for epoch in range(2):
        progress, sizes = [], []
        for inputs, targets in loader:
            progress.append(loader.progress)
            sizes.append(len(inputs))
            loader.loss(model(inputs), targets)
            assert int(loader.batch.ids.max()) < 102
        assert progress
        assert len(progress) <= len(loader), "len() is an upper bound"
        if epoch == 0:
            assert progress == sorted(set(progress))
            assert progress[-1] == 0.5 and (len(progress) == 1 or progress[-2] < 0.5)
            assert min(sizes) > 1, "BatchNorm could not be trained on a single example"
            offered = sum(sizes)
    assert loader.progress == 1
    if name in ("a part", "the kept part", "mostly pruned"):
        assert offered == {"a part": 70, "the kept part": 33, "mostly pruned": 5}[name]


@pytest.mark.parametrize("count", [15, 16, 17, 18, 31, 32, 33, 34])
def test_a_single_example_left_goes_into_the_batch_before_it(count):
    train_loader = DataLoader(digits(), 16, sampler=SubsetRandomSampler([*range(count), *range(150, 190)]))
    method = sb.diet(method=sb.traditional(), scores=SCORES, prune=0.5)
    loader = sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), method)
    batches = [loader.batch.ids.tolist() for _ in loader]
    assert sorted(i for batch in batches for i in batch) == list(range(count))
    rest = count % 16
    assert [len(batch) for batch in batches] == [16] * (count // 16 - (rest == 1)) + {0: [], 1: [17]}.get(rest, [rest])
    assert len(loader) == -(-count // 16)


def test_smaller_training_batches_than_candidate_batches_stay_within_len():
    train_loader = DataLoader(digits(), 16, sampler=SubsetRandomSampler(range(17)))
    method = sb.diet(method=sb.traditional(), scores=SCORES, prune=0.5)
    loader = sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), method, batch_size=8)
    assert sum(1 for _ in loader) <= len(loader)


def test_a_diet_that_prunes_nothing_is_plain_training():
    train_loader = DataLoader(digits(33), 16)
    method = sb.diet(method=sb.traditional(), scores=torch.ones(33), prune=0.0)
    loader = sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), method)
    assert [len(inputs) for inputs, _ in loader] == [16, 16, 1]


def test_counting_draws_nothing():
    """len() of a loader with a sampler that draws must not change the order of the epoch."""

    def order(ask):
        generator = torch.Generator().manual_seed(7)
        train_loader = DataLoader(digits(), 16, sampler=SubsetRandomSampler(range(70), generator=generator))
        method = sb.diet(method=sb.traditional(), scores=SCORES, prune=0.5)
        loader = sb.SelectiveLoader(train_loader, make_model(), nn.CrossEntropyLoss(), method)
        assert not ask or len(loader) == 5
        return [loader.batch.ids.tolist() for _ in loader]

    assert order(True) == order(False)


@pytest.mark.parametrize("method", [sb.traditional(), sb.ledger_backprop()], ids=lambda m: m.name)
def test_an_epoch_may_offer_too_few_kept_examples_for_a_batch(method, caplog):
    """By chance, with a sampler of a part of the data set and drop_last. It is no end of the run."""
    sampler = RandomSampler(digits(), num_samples=20, generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(digits(), 10, sampler=sampler, drop_last=True)
    model, diet = make_model(), sb.diet(method=method, scores=SCORES, prune=0.5)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), diet, num_epochs=12)
    counts = []
    for _ in range(12):
        counts.append(0)
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            counts[-1] += 1
    assert 0 in counts and 1 in counts and loader.progress == 1
    assert "an epoch gave out no batch" in caplog.text
