"""The share of the candidates that a whole run trains on, and what is said if it is not the one asked for."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import selective_backprop as sb
from tests.helpers import by_class, digits, make_loader, make_model, train


def shares_of_epochs(method, num_epochs=3, count=1200, batch_size=32):
    """Digits, learned so fast that losses fall within the first epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    train_loader = DataLoader(digits(count), batch_size, shuffle=True)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=num_epochs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    shares = []
    for _ in range(num_epochs):
        before = loader.stats.trained, loader.stats.offered
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        shares.append((loader.stats.trained - before[0]) / (loader.stats.offered - before[1]))
    return shares


@pytest.mark.parametrize(
    "method",
    [
        sb.selective_backprop(1 / 3),
        sb.selective_backprop(1 / 3, unbiased=True),
        sb.selective_backprop(1 / 3, fixed_size=True),
        by_class(sb.selective_backprop(1 / 3, fixed_size=True), digits(1200).tensors[1]),
        sb.stale_selective_backprop(1 / 3),
        sb.methods.predicted_selective_backprop(1 / 3),
        sb.top_k(1 / 3),
    ],
    ids=str,
)
def test_every_epoch_trains_on_what_was_asked_for(method, caplog):
    with caplog.at_level(logging.WARNING):
        shares = shares_of_epochs(method)
    # 400 of 1,200 coins: one standard deviation of a share is 4%, and what coins missed is made up for.
    assert shares == pytest.approx([1 / 3] * 3, rel=0.1)
    assert not caplog.records


def test_a_share_far_from_the_one_asked_for_is_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        shares = shares_of_epochs(sb.selective_backprop(1 / 3, paper=True))
    assert min(shares) < 0.28
    (record,) = [record for record in caplog.records if "asked" in record.message]
    assert all(
        part in record.message for part in ("selective_backprop", "0.333", " 0.2", "1200", "epoch 1", "paper=True")
    )


@pytest.mark.parametrize(
    "method",
    [
        sb.traditional(),
        sb.random_backprop(0.1),
        sb.methods.expected_selective_backprop(0.25),
        sb.ledger_backprop(),
        sb.selective_backprop(0.25, start=0.5),
        sb.selective_backprop(0.25, interrupt=2, warmup_epochs=1),
    ],
    ids=str,
)
def test_nothing_is_logged_where_the_share_is_right_or_was_not_asked_for(method, caplog):
    with caplog.at_level(logging.WARNING):
        shares_of_epochs(method)
    assert not [record for record in caplog.records if "asked" in record.message]


def test_a_policy_of_one_s_own_is_told_of(caplog):
    class TooMany(sb.policies.UniformPolicy):
        def select(self, scores, generator):
            return sb.policies.UniformPolicy(selectivity=1).select(scores, generator)

    method = sb.Method("mine", sb.scorers.ForwardScorer(), TooMany(selectivity=0.5), sb.schedules.Schedule())
    model = make_model()
    with caplog.at_level(logging.WARNING):
        train(make_loader(method, model=model), model, 2)
    (record,) = caplog.records
    assert all(part in record.message for part in ("mine", "0.500", "1.000", "203", "epoch 1"))


def test_small_candidate_batches_keep_the_share():
    """A third of 8 is neither 2 nor 3."""
    data = TensorDataset(torch.randn(800, 4), torch.randint(2, (800,)))
    for method in (sb.top_k(1 / 3), sb.selective_backprop(1 / 3, fixed_size=True)):
        loader = sb.SelectiveLoader(DataLoader(data, 8), nn.Linear(4, 2), nn.CrossEntropyLoss(), method)
        for _ in loader:
            pass
        assert abs(int(loader.ledger.selected.sum()) - 800 / 3) <= 0.5


def test_an_epoch_that_is_not_worth_skipping_is_explained_once(caplog):
    """Pure noise: all losses are about the same, so hardly anything could be skipped."""
    generator = torch.Generator().manual_seed(0)
    noise = TensorDataset(torch.randn(400, 8, generator=generator), torch.arange(400) % 2)
    for method, trains_on_all in ((sb.ledger_backprop(), True), (sb.ledger_backprop(skip_at_least=0), False)):
        caplog.clear()
        torch.manual_seed(0)
        model, train_loader = nn.Linear(8, 2), DataLoader(noise, 20, shuffle=True)
        loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=3)
        for _ in range(3):
            for inputs, targets in loader:
                loader.loss(model(inputs), targets)
        assert (loader.stats.selectivity == 1) is trains_on_all
        lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(lines) == trains_on_all == ("epoch 3" in str(loader.stats))
        if trains_on_all:
            assert all(part in lines[0] for part in ("epoch 2", "95%", "80%", "skip_at_least"))


def test_statistics_say_why_nothing_was_skipped_until_something_is():
    losses, sampler = torch.ones(100), sb.SelectiveSampler(100, sb.ledger_backprop())
    notes = []
    for _ in range(3):
        for ids in BatchSampler(sampler, 20, drop_last=False):
            sampler.update(losses[ids])
        notes.append(str(sampler.stats).partition("\n")[2])
        losses[10:] = 1e-6  # for the epoch after next: a tenth of the examples then carries the loss
    assert "epoch 1" in notes[0] and "epoch 2" in notes[1] and "80%" in notes[1]
    assert notes[2] == "" and sampler.stats.selectivity < 1


def test_skipping_starts_when_enough_can_be_skipped():
    shares = shares_of_epochs(sb.ledger_backprop(), num_epochs=6)
    assert shares[0] == 1 and max(share for share in shares if share < 1) <= 0.7
    assert shares[-1] < 0.5


def test_the_note_of_an_epoch_outside_the_window_says_so():
    model = make_model()
    loader = make_loader(sb.ledger_backprop(end=0.5), model=model, num_epochs=2)
    train(loader, model, 2)
    assert "end=" in str(loader.stats)
