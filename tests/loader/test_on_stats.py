"""The hook on_stats: what it is told, when, and that nothing is told twice or not at all."""

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb

COUNTS = ("offered", "scored", "trained", "skipped_before_loading", "batches")


def make(method=None, *, num_epochs=3, **options):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(100, 4, generator=generator), torch.randint(2, (100,), generator=generator))
    model = torch.nn.Linear(4, 2)
    batches = DataLoader(data, batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(0))
    method = method or sb.selective_backprop(0.5)
    return sb.SelectiveLoader(batches, model, torch.nn.CrossEntropyLoss(), method, num_epochs=num_epochs, **options)


def train(loader, epochs=3, stop_after=None):
    steps = 0
    for _ in range(epochs):
        for inputs, targets in loader:
            loader.loss(loader.model(inputs), targets).backward()
            steps += 1
            if steps == stop_after:
                return loader.state_dict()


@pytest.mark.parametrize("every", [None, 1, 4, 1000])
@pytest.mark.parametrize(
    "method",
    [sb.selective_backprop(0.5), sb.methods.ledger_percentile(0.5), sb.traditional(), sb.random_backprop(0.3)],
    ids=str,
)
def test_reports_add_up_to_the_statistics(method, every):
    told = []
    loader = make(method, on_stats=told.append if every is None else sb.Every(every, told.append))
    train(loader)
    for name in COUNTS:
        assert sum(values[name] for values in told) == getattr(loader.stats, name), name
    for phase, seconds in loader.stats.seconds.items():
        assert sum(values[f"seconds_{phase}"] for values in told) == pytest.approx(seconds)
    assert [values["epoch"] for values in told if values["epoch"] == int(values["epoch"])][-1] == 3
    assert told[-1]["step"] == loader.stats.batches
    assert len(told) >= 3 if every else len(told) == 3
    if every == 1:
        assert all(values["batches"] <= 1 for values in told)
    assert all(type(value) in (float, int) and math.isfinite(value) for values in told for value in values.values())


def test_an_epoch_is_told_as_it_was():
    told = []
    loader = make(sb.selective_backprop(0.5), on_stats=told.append)
    train(loader)
    for epoch, values in enumerate(told, start=1):
        assert values["epoch"] == epoch
        assert values["offered"] == 100
        assert values["scored"] == 100
        assert values["selectivity"] == pytest.approx(0.5, abs=0.2)
    losses = sum(values["mean_candidate_loss"] * values["scored"] for values in told)
    assert losses / loader.stats.scored == pytest.approx(loader.stats.mean_candidate_loss)


def test_what_is_not_known_is_left_out():
    told = []
    loader = make(sb.random_backprop(0.5), on_stats=told.append)
    train(loader)
    assert "mean_candidate_loss" not in told[0]
    assert "mean_trained_loss" in told[0]


def test_an_epoch_left_early_is_told_when_the_next_begins():
    told = []
    loader = make(on_stats=told.append)
    train(loader, stop_after=2)
    assert told == []
    train(loader, epochs=1)
    assert [values["epoch"] for values in told] == [1, 2]


def test_looking_at_a_batch_tells_nothing():
    told = []
    loader = make(on_stats=told.append)
    next(iter(loader))
    assert told == []
    train(loader)
    assert len(told) == 3


@pytest.mark.parametrize("steps", [1, 6, 11])
def test_a_resumed_run_tells_the_same(steps):
    whole, parts = [], []
    loader = make(on_stats=whole.append)
    train(loader)
    first = make(on_stats=parts.append)
    torch.manual_seed(0)
    state = train(first, stop_after=steps)
    second = make(on_stats=parts.append)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(state)
    train(second, epochs=3 - second.epoch)
    for name in COUNTS:
        assert sum(values[name] for values in parts) == getattr(second.stats, name)
    assert [values["epoch"] for values in parts] == [1, 2, 3]


@pytest.mark.parametrize("method", [sb.traditional(), sb.methods.ledger_percentile(0.5)], ids=str)
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_resumed_run_tells_after_the_same_steps(steps, method):
    """A state is saved within a step, and the report is due at its end."""
    whole, first, rest = [], [], []
    train(make(method, on_stats=sb.Every(4, whole.append)), epochs=1)
    stopped = make(method, on_stats=sb.Every(4, first.append))
    state = train(stopped, stop_after=steps)
    resumed = make(method, on_stats=sb.Every(4, rest.append))
    resumed.load_state_dict(state)
    train(resumed, epochs=1)
    for name in ("step", "epoch", "trained", "offered"):
        assert [values[name] for values in first + rest] == [values[name] for values in whole]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_stats": "tensorboard"}, TypeError, "on_stats .*'tensorboard'"),
        ({"on_stats": sb.Every(0, print)}, ValueError, "every .* 0"),
        ({"on_stats": sb.Every(1.5, print)}, TypeError, r"every .* 1\.5"),
    ],
)
def test_bad_hooks_are_refused_at_once(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)
