"""The guard, by a clock that the tests turn, and by the real one where the difference is large."""

import copy
import dataclasses
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def next_is_on(guard, index):
    guard.advance(0.0, index)
    return guard.is_on(0.0, index)


def run(guard, clock, num_batches, *, seconds_on, seconds_off, pause_at=None):
    """Whether selection was on for each batch of an epoch."""
    states = []
    for index in range(num_batches):
        states.append(next_is_on(guard, index))
        clock.now += seconds_on if states[-1] else seconds_off
        clock.now += 1000 if index == pause_at else 0
    return states


@pytest.fixture
def clock():
    return Clock()


def test_it_measures_both_and_goes_on_with_the_faster(clock):
    states = run(sb.schedules.Guard(window=5, patience=50, clock=clock), clock, 40, seconds_on=1.0, seconds_off=3.0)
    assert states == [False] * 5 + [True] * 35


def test_it_switches_off_what_does_not_pay_and_says_so_once(clock, caplog):
    guard = sb.schedules.Guard(window=5, patience=50, clock=clock)
    with caplog.at_level(logging.INFO):
        states = run(guard, clock, 60, seconds_on=3.0, seconds_off=2.0)
    assert states == [False] * 5 + [True] * 5 + [False] * 50
    assert [record.message for record in caplog.records] == [
        "selection is switched off: a candidate batch takes 3e+03 ms with it and 2e+03 ms without"
    ]


def test_it_switches_back_on_when_that_changes(clock, caplog):
    guard = sb.schedules.Guard(window=5, patience=20, clock=clock)
    run(guard, clock, 20, seconds_on=3.0, seconds_off=2.0)
    with caplog.at_level(logging.INFO):
        states = run(guard, clock, 100, seconds_on=1.0, seconds_off=2.0)
    assert states[-30:].count(True) >= 24
    assert [record.message.split(":")[0] for record in caplog.records] == ["selection is switched on"]


def test_a_small_difference_is_no_reason_to_switch(clock):
    states = run(sb.schedules.Guard(window=5, patience=50, clock=clock), clock, 30, seconds_on=2.05, seconds_off=2.0)
    assert all(states[5:])


def test_pauses_are_not_counted(clock):
    states = run(
        sb.schedules.Guard(window=5, patience=50, clock=clock), clock, 30, seconds_on=1.0, seconds_off=3.0, pause_at=8
    )
    assert all(states[5:])


def test_time_between_epochs_is_not_counted(clock):
    guard = sb.schedules.Guard(window=5, patience=100, clock=clock)
    states = []
    for _ in range(10):
        states += run(guard, clock, 4, seconds_on=1.0, seconds_off=3.0)
        clock.now += 1000
    assert all(states[-20:])


def test_outside_its_window_of_training_nothing_is_measured(clock):
    guard = sb.schedules.Guard(warmup_epochs=1, window=5, patience=50, clock=clock)
    assert not any(run(guard, clock, 50, seconds_on=1, seconds_off=9))
    assert guard.state_dict()["since"] == 0


def test_state_goes_on_where_it_was(clock):
    first = sb.schedules.Guard(window=5, patience=50, clock=clock)
    run(first, clock, 20, seconds_on=3.0, seconds_off=2.0)
    second = sb.schedules.Guard(window=5, patience=50, clock=clock)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state_dict() == first.state_dict()
    assert not any(run(second, clock, 20, seconds_on=3.0, seconds_off=2.0))


@pytest.mark.parametrize(("selectivity", "pays"), [(0.5, True), (0.8, False)])
def test_in_training_by_a_clock_of_passes(selectivity, pays):
    """A forward pass takes 1, a backward pass 2: SB costs 1 + 3s against 3, and pays below a selectivity of 2/3."""
    torch.manual_seed(0)
    work = {"done": 0.0}
    model = nn.Sequential(nn.Linear(8, 4))
    model.register_forward_hook(lambda module, inputs, outputs: work.update(done=work["done"] + len(outputs)))
    data = TensorDataset(torch.randn(4096, 8), torch.randint(4, (4096,)))
    guard = sb.schedules.Guard(window=32, most_spread=1, clock=lambda: work["done"])
    method = dataclasses.replace(sb.selective_backprop(selectivity), schedule=guard)
    loader = sb.SelectiveLoader(DataLoader(data, 32), model, nn.CrossEntropyLoss(), method)
    for inputs, targets in loader:
        loader.loss(model(inputs), targets).backward()
        work["done"] += 2 * len(inputs)
    last = 128 - 2 * 32  # batches after both have been measured
    assert loader.state_dict()["parts"]["schedule"]["settled_on"] is pays
    # The very first batch is scored to see that it can be; once selection is switched off, none is.
    assert loader.stats.scored == 32 * (1 + 32 + (last if pays else 0))


def test_a_resumed_run_goes_on_exactly_if_the_clock_does():
    data = TensorDataset(torch.randn(640, 8), torch.randint(4, (640,)))
    method = dataclasses.replace(
        sb.selective_backprop(0.5), schedule=sb.schedules.Guard(window=3, patience=6, most_spread=1, clock=float)
    )

    def make():
        torch.manual_seed(0)
        return sb.SelectiveLoader(DataLoader(data, 16), nn.Linear(8, 4), nn.CrossEntropyLoss(), method)

    whole, first, resumed = make(), make(), make()
    undisturbed = [targets for _, targets in whole]
    head = []
    for _, targets in first:
        head.append(targets)
        if len(head) == 9:
            resumed.load_state_dict(first.state_dict())
            break
    assert torch.equal(torch.cat([*head, *(targets for _, targets in resumed)]), torch.cat(undisturbed))
    assert 0 < whole.stats.scored < 640, "it was on and off"


@pytest.mark.parametrize(("power", "pays"), [(1, False), (20, True)])
def test_losses_that_are_spread_evenly_switch_selection_off(clock, caplog, power, pays):
    """Uniform losses need about 0.77 of the candidates for 95% of their sum; a high power makes a few carry it."""
    guard = sb.schedules.Guard(window=5, patience=50, clock=clock)
    generator = torch.Generator().manual_seed(0)
    states = []
    with caplog.at_level(logging.INFO):
        for index in range(60):
            states.append(next_is_on(guard, index))
            if states[-1]:
                guard.observe(torch.rand(256, generator=generator) ** power)
            clock.now += 1.0 if states[-1] else 3.0
    assert states == [False] * 5 + [True] * 5 + [pays] * 50
    lines = [record.message for record in caplog.records]
    assert len(lines) == (not pays)
    assert all(line.startswith("selection is switched off: losses are spread evenly. 77% of the") for line in lines)


def test_losses_that_become_spread_evenly_switch_a_settled_guard_off(clock):
    guard = sb.schedules.Guard(window=5, patience=1000, clock=clock)
    states = []
    for index in range(60):
        states.append(next_is_on(guard, index))
        if states[-1]:
            guard.observe(torch.tensor([1.0] + [0.0] * 9) if index < 30 else torch.ones(10))
        clock.now += 1.0 if states[-1] else 3.0
    assert all(states[5:30]) and not any(states[41:])


def test_only_methods_with_a_pass_for_every_candidate_have_one():
    with pytest.raises(ValueError, match="ledger_backprop needs no guard: it decides before loading"):
        sb.ledger_backprop().guard()
    with pytest.raises(ValueError, match="stale_selective_backprop needs no guard: it decides before loading"):
        sb.stale_selective_backprop().guard()
    with pytest.raises(ValueError, match="kath18 cannot have a guard, because it already decides"):
        sb.kath18(1 / 3).guard()
    scorer, policy = sb.scorers.TrainingLossScorer(), sb.policies.TopKPolicy(selectivity=0.5)
    with pytest.raises(ValueError, match=r"mine cannot have Guard\(window=5.* decides about a whole epoch"):
        sb.Method("mine", scorer, policy, schedule=sb.schedules.Guard(window=5))
    with pytest.raises(ValueError, match="window must be at least 1"):
        sb.selective_backprop(0.5).guard(window=0)
    with pytest.raises(ValueError, match="margin must be in"):
        sb.schedules.Guard(margin=1.0)
    with pytest.raises(ValueError, match="most_spread must be a share"):
        sb.schedules.Guard(most_spread=0.0)
