"""Batches by optimizer steps: each epoch of the trainer has all batches of one epoch of the loader, and no others."""

import pytest
import torch

import selective_backprop as sb
from selective_backprop.integrations.steps import OptimizerSteps
from tests.helpers import NUM_DIGITS, make_loader

EPOCH = 13  # batches of 16 among 203 digits


def steps_of_an_epoch(steps, accumulation):
    """Ask for batches as Trainer does. Returns the slots of every step, and ends the epoch."""
    asked = [min(accumulation, EPOCH - first) for first in range(0, EPOCH, accumulation)]
    given = [(steps.take(count), count) for count in asked]
    assert all(len(slots) in (0, count) for slots, count in given)
    steps.end_epoch()
    return [slots for slots, _ in given if slots]


def sizes_of(slots):
    return [len(batch) for batch in slots if batch is not None]


@pytest.mark.parametrize("accumulation", [1, 2, 4, 5, 20])
@pytest.mark.parametrize("selectivity", [0.02, 0.3, 0.95, 1.0])
def test_an_epoch_has_all_its_batches_in_whole_steps(accumulation, selectivity):
    steps = OptimizerSteps(make_loader(sb.selective_backprop(selectivity), num_epochs=5))
    loader, before = steps.loader, 0
    for epoch in range(5):
        given = steps_of_an_epoch(steps, accumulation)
        assert steps.epoch == epoch + 1 and loader.epochs_done == epoch + 1
        trained, before = loader.stats.trained - before, loader.stats.trained
        assert sum(sum(sizes_of(slots)) for slots in given) == trained > 0
        assert all(None not in slots for slots in given[:-1])
        assert given[-1][-1] is not None, "a trainer makes its step after the last slot"
    assert steps_of_an_epoch(steps, accumulation) == [] and steps.run_over
    if selectivity == 1:
        assert loader.stats.trained == 5 * NUM_DIGITS


def test_an_epoch_without_a_batch_is_joined_with_the_next():
    loader_options = {"drop_last": True}
    steps = OptimizerSteps(make_loader(sb.selective_backprop(0.07), num_epochs=40, loader_options=loader_options))
    epochs = []
    while not steps.run_over:
        epochs.append(steps_of_an_epoch(steps, 2))
    assert 0 < len(epochs) < 40
    assert all(epochs[:-1]), "trainers end the run when an epoch has no step"
    assert sum(len(sizes_of(slots)) for given in epochs for slots in given) == steps.loader.stats.batches


@pytest.mark.parametrize("num_steps", [1, 3, 4, 6])
def test_5_resumed_between_any_two_steps(num_steps):
    def make():
        loader_options = {"generator": torch.Generator().manual_seed(3)}
        return OptimizerSteps(make_loader(sb.random_backprop(0.5), num_epochs=3, loader_options=loader_options))

    def ids(steps, count):
        found = []
        for _ in range(count):
            slots = steps.take(2)
            found.append([None if batch is None else batch.ids.tolist() for batch in slots])
            if not slots:
                steps.end_epoch()
        return found

    whole = make()
    ids(whole, num_steps)
    state = whole.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert (resumed.epoch, resumed.taken) == (whole.epoch, whole.taken)
    assert ids(resumed, 3) == ids(whole, 3)
