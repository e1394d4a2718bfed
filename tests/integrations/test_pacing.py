"""Slots: as many an epoch as plain training has batches, for any method, window and batch size."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.integrations.pacing import PacedLoader
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
    loader = PacedLoader(
        train_loader, model, nn.CrossEntropyLoss(), METHODS[method], num_epochs=epochs, window=window, **options
    )
    return loader, model


def run(loader, model, epochs=3, steps=None):
    """The slots that were given out: ids, or None; stops after so many."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    slots = []
    for _ in range(epochs):
        for slot in loader:
            if slot is not None:
                optimizer.zero_grad()
                loader.loss(model(slot[0]), slot[1]).backward()
                optimizer.step()
            loader.end_step()
            slots.append(slot if slot is None else loader.batch.ids.tolist())
            if len(slots) == steps:
                return slots
    return slots


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("window", [1, 3])
def test_every_epoch_has_len_slots_and_every_window_is_full_or_empty(method, window):
    loader, model = make(method, window=window)
    slots = run(loader, model)
    assert len(slots) == 3 * len(loader) == 39
    for epoch in range(3):
        of_epoch = slots[13 * epoch : 13 * (epoch + 1)]
        for start in range(0, 12, window):
            filled = [slot is not None for slot in of_epoch[start : start + window]]
            assert len(set(filled)) == 1
    batches = [slot for slot in slots if slot is not None]
    if method != "everything":
        assert None in slots and all(len(batch) == 16 for batch in batches[:-1])
    assert sum(map(len, batches)) == loader.stats.trained
    assert loader.stats.offered == 609 and loader.stats.queued < 16 * window


def test_windows_may_not_be_empty():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        make("sb", window=0)


def test_selectivity_1_gives_the_batches_of_plain_training():
    loader, _ = make("everything", epochs=2)
    plain = DataLoader(digits(), 16, shuffle=True, generator=torch.Generator().manual_seed(1))
    given = [slot for _ in range(2) for slot in loader]
    assert same(given, [batch for _ in range(2) for batch in plain])


def test_large_candidate_batches_have_several_slots_each():
    loader, model = make("sb", candidates=64, batch_size=16)
    slots = run(loader, model)
    assert len(loader) == 13 and len(slots) == 39  # 203 candidates make at most that many batches of 16
    assert all(len(slot) == 16 for slot in slots[:-1] if slot is not None)


@pytest.mark.parametrize("method", ["sb", "stale"])
@pytest.mark.parametrize("window", [1, 3])
def test_saved_after_any_slot_and_resumed(method, window):
    loader, model = make(method, window=window)
    undisturbed = run(loader, model)
    for steps in (1, 7, 12, 13, 25, 31):
        torch.manual_seed(0)
        loader, model = make(method, window=window)
        before = run(loader, model, steps=steps)
        state, random = loader.state_dict(), torch.get_rng_state()
        resumed, other = make(method, window=window)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(state)
        torch.set_rng_state(random)
        epochs_left = 3 - steps // 13
        assert before + run(resumed, other, epochs=epochs_left) == undisturbed


def test_an_epoch_left_early_is_over():
    loader, model = make("sb")
    first = run(loader, model, epochs=1, steps=5)
    second = run(loader, model, epochs=1)
    assert len(first) == 5 and len(second) == 13 and loader.epoch == 2
