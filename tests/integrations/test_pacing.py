"""Slots: as many an epoch as plain training has batches, for any method, window and batch size."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.integrations.pacing import Slots
from selective_backprop.testing import same
from tests.helpers import digits, make_model

METHODS = {
    "sb": sb.selective_backprop(0.4),
    "stale": sb.stale_selective_backprop(0.4, every=2),
    "random": sb.random_backprop(0.3),
    "everything": sb.selective_backprop(1.0),
}


def make(method, *, window=1, epochs=3, candidates=16, **options):
    model = make_model()
    train_loader = DataLoader(digits(), candidates, shuffle=True, generator=torch.Generator().manual_seed(1))
    method = METHODS.get(method, method)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=epochs, **options)
    return Slots(loader, window), model


def run(slots, model, epochs=3, steps=None):
    """The slots that were given out: ids, or None; stops after so many."""
    loader = slots.loader
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    given = []
    for _ in range(epochs):
        for slot in slots:
            if slot is not None:
                optimizer.zero_grad()
                loader.loss(model(slot[0]), slot[1]).backward()
                optimizer.step()
            loader.stepper.end_step()
            given.append(slot if slot is None else loader.batch.ids.tolist())
            if len(given) == steps:
                return given
    return given


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("window", [1, 3, 5])
def test_every_epoch_has_len_slots_and_every_window_is_full_or_empty(method, window):
    slots, model = make(method, window=window)
    given, stats = run(slots, model), slots.loader.stats
    assert len(given) == 3 * len(slots) == 39
    for epoch in range(3):
        of_epoch = [slot is not None for slot in given[13 * epoch : 13 * (epoch + 1)]]
        windows = [of_epoch[start : start + window] for start in range(0, 13, window)]
        mixed = [i for i, filled in enumerate(windows) if len(set(filled)) > 1]
        assert all(sorted(windows[i]) == windows[i] for i in mixed), "the epoch's last batches come last"
        assert len(mixed) <= 1 and all(all(filled) for i in mixed for filled in windows[i + 1 :])
        if method != "everything":
            assert not all(of_epoch)
    batches = [slot for slot in given if slot is not None]
    assert all(len(batch) >= 8 for batch in batches)
    assert sum(map(len, batches)) == stats.trained and stats.queued == stats.dropped == 0
    assert stats.offered == 609


@pytest.mark.parametrize("method", ["random", "stale"])
def test_the_batches_of_a_planned_epoch_are_spread_over_its_slots(method):
    slots, model = make(method)
    given = run(slots, model)[13:26]  # an epoch planned by known scores, if any
    places = [place for place, slot in enumerate(given) if slot is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert places[0] == 0 and len(places) >= 3 and max(gaps) <= 13 / len(places) + 1


class KeepsTheLast(sb.types.Policy):
    """Trains on nothing at first, and then on everything: all batches come late."""

    selectivity = 0.5

    def __init__(self, after):
        self.after, self.seen = after, 0

    def select(self, scores, generator):
        self.seen += len(scores)
        kept = torch.arange(len(scores) if self.seen > self.after else 0)
        return sb.types.Selection(kept, torch.ones(len(kept)), torch.ones(len(scores), dtype=torch.float64))


@pytest.mark.parametrize("window", [1, 2, 5, 13])
@pytest.mark.parametrize("after", [40, 100, 150])
def test_nothing_is_lost_when_the_last_candidates_are_all_selected(window, after, caplog):
    method = sb.Method("late", sb.scorers.ForwardScorer(), KeepsTheLast(after))
    slots, model = make(method, window=window, epochs=1)
    given = run(slots, model, epochs=1)
    expected = 203 - after // 16 * 16
    assert len(given) == 13 and sum(len(slot) for slot in given if slot is not None) == expected
    assert "are dropped" not in caplog.text


def test_batches_that_grow_are_told_of(caplog):
    sizes = [8, 8, 64, 64, 59]
    batches = list(torch.arange(203).split(sizes))
    train_loader = DataLoader(digits(), batch_sampler=[batch.tolist() for batch in batches])
    model = make_model()
    loss_fn, method = nn.CrossEntropyLoss(), sb.selective_backprop(0.9)
    loader = sb.SelectiveLoader(train_loader, model, loss_fn, method, num_epochs=1, batch_size=8)
    given = run(Slots(loader), model, epochs=1)
    assert len(given) == 26 and "training batches are dropped" in caplog.text


def test_windows_may_not_be_empty():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        make("sb", window=0)


def test_selectivity_1_gives_the_batches_of_plain_training():
    slots, _ = make("everything", epochs=2)
    plain = DataLoader(digits(), 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    given = [slot for _ in range(2) for slot in slots]
    assert same(given, [batch for _ in range(2) for batch in plain])


def test_large_candidate_batches_have_several_slots_each():
    slots, model = make("sb", candidates=64, batch_size=16)
    given = run(slots, model)
    assert len(slots) == 13 and len(given) == 39  # 203 candidates make at most that many batches of 16
    assert all(8 <= len(slot) <= 16 for slot in given if slot is not None)


@pytest.mark.parametrize("method", ["sb", "stale", "random"])
@pytest.mark.parametrize("window", [1, 3])
def test_saved_after_any_slot_and_resumed(method, window):
    torch.manual_seed(0)
    undisturbed = run(*make(method, window=window))
    for steps in (1, 2, 7, 12, 13, 25, 31):
        slots, model = make(method, window=window)
        torch.manual_seed(0)
        before = run(slots, model, steps=steps)
        state, random = slots.state_dict(), torch.get_rng_state()
        resumed, other = make(method, window=window)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(state)
        torch.set_rng_state(random)
        epochs_left = 3 - (steps - 1) // 13
        assert before + run(resumed, other, epochs=epochs_left) == undisturbed, steps


def test_an_epoch_left_early_is_over():
    slots, model = make("sb")
    first = run(slots, model, epochs=1, steps=5)
    second = run(slots, model, epochs=1)
    assert len(first) == 5 and len(second) == 13 and slots.loader.epoch == 2


def test_an_epoch_that_is_ended_gives_no_more_slots():
    slots, _ = make("random")
    iteration = iter(slots)
    next(iteration)
    slots.end_epoch()
    assert list(iteration) == [] and slots.loader.epoch == 1
