"""Whether examples that are left out are forgotten, and what the ledger does then."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.scorers.forgetting import ForgettingCheck, comes_back
from tests.helpers import digits


def by_heart(size=200):
    """Random labels of random inputs: a network can only memorise them."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(size, 16, generator=generator), torch.randint(4, (size,), generator=generator))


def train(data, method, epochs, hidden=256, rate=0.1):
    """Return the loader, and what share of the examples each epoch trained on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(data.tensors[0].shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 10))
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(data, 20, shuffle=True, generator=order)
    loader = sb.SelectiveLoader(loader, model, nn.CrossEntropyLoss(), method, num_epochs=epochs)
    optimizer, shares = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), []
    for _ in range(epochs):
        before = loader.stats.trained, loader.stats.offered
        for inputs, targets in loader:
            loss = loader.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        shares.append((loader.stats.trained - before[0]) / (loader.stats.offered - before[1]))
    return loader, shares


def test_what_is_memorised_is_trained_on_again_from_then_on(caplog):
    with caplog.at_level(logging.WARNING):
        loader, shares = train(by_heart(), sb.ledger_backprop(), epochs=30)
    skipping = [share < 1 for share in shares]
    assert any(skipping), "at first it looks as if much could be skipped"
    last = max(epoch for epoch, skips in enumerate(skipping) if skips)
    assert last < 20 and shares[last + 1 :] == [1.0] * (29 - last), "then nothing is skipped to the end"
    assert len([record.message for record in caplog.records if "forgets" in record.message]) == 1
    assert "most_rise=0.4" in str(loader.stats)
    _, without = train(by_heart(), sb.ledger_backprop(most_rise=None), epochs=30)
    assert min(without[-5:]) < 0.9


def test_what_is_learned_in_general_stays_skipped():
    _, shares = train(digits(1000), sb.ledger_backprop(), epochs=10)
    assert max(shares[-3:]) < 0.7


def test_some_come_back_in_every_epoch_and_all_in_turn():
    ids = torch.arange(3000)
    turns = torch.stack([comes_back(ids, epoch) for epoch in range(15)])  # 3000 // 200 epochs
    assert bool((turns.sum(0) == 1).all())
    assert int(turns.sum(1).min()) > 140 and int(turns.sum(1).max()) < 260
    loader, _ = train(digits(1000), sb.ledger_backprop(max_age=None), epochs=12)
    assert int((11 - loader.ledger.loss_epoch).max()) <= 10, (
        "a tenth of small data comes back, so nobody is away longer"
    )


def test_the_median_decides_and_needs_enough_examples():
    check, before = ForgettingCheck(0.1), torch.zeros(40)
    for after in (torch.full((29,), 9.0), torch.full((0,), 9.0)):
        few = ForgettingCheck(0.1)
        few.learn(before[: len(after)], after, mean=1.0)
        assert not few.forgets
    half = torch.cat([torch.full((19,), 9.0), torch.zeros(21)])
    check.learn(before, half, mean=1.0)
    assert not check.forgets, "fewer than half were forgotten"
    for _ in range(2):
        check.learn(before, torch.full((40,), 0.5), mean=1.0)
    assert check.forgets, "the median is over three epochs"
    check.learn(before, before, mean=1.0)
    assert check.forgets, "this is final"


def test_scale_does_not_matter_and_losses_may_be_negative():
    for scale, shift in ((1e-6, 0.0), (1e6, 0.0), (1.0, -5.0)):
        check = ForgettingCheck(0.1)
        before = torch.full((40,), 0.1) * scale + shift
        check.learn(before, before + 0.05 * scale, mean=1.0 * scale)
        assert not check.forgets
        check.learn(before, before + 0.5 * scale, mean=1.0 * scale)
        check.learn(before, before + 0.5 * scale, mean=1.0 * scale)
        assert check.forgets


@pytest.mark.parametrize(
    ("option", "value"),
    [("most_rise", 0), ("skip_at_least", 1), ("cap", 0.5), ("keep_at_least", 2), ("keep_at_least", 0.9)],
)
def test_bad_options(option, value):
    with pytest.raises(ValueError, match=f"{option}.*{value}"):
        sb.ledger_backprop(**{option: value})
