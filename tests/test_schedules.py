import copy

import pytest
import torch

import selective_backprop as sb
from selective_backprop.schedules import Schedule, VariableStart


def test_on_by_default():
    assert all(Schedule().is_on(t, i) for t in (0, 0.5, 99) for i in range(4))


def test_warmup_ends_at_a_fraction_of_an_epoch():
    schedule = Schedule(warmup_epochs=1.5)
    assert [schedule.is_on(t, 0) for t in (0, 1.4999, 1.5, 2)] == [False, False, True, True]


@pytest.mark.parametrize("num_epochs", range(1, 31))
def test_window_switches_exactly_once_on_and_once_off(num_epochs):
    schedule = Schedule(start=0.5, end=0.9)
    states = [schedule.is_on(e + i / 10, i, num_epochs) for e in range(num_epochs) for i in range(10)]
    expected = [0.5 <= step / (10 * num_epochs) < 0.9 for step in range(10 * num_epochs)]
    assert states == expected


def test_a_window_to_the_end_stays_on_beyond_it():
    assert Schedule(start=0.5).is_on(7.0, 0, num_epochs=4)
    assert not Schedule(end=0.5).is_on(7.0, 0, num_epochs=4)


def test_interrupt():
    assert [Schedule(interrupt=3).is_on(0, i) for i in range(6)] == [True, True, False, True, True, False]


def test_never():
    schedule = Schedule(end=0)
    assert schedule.never_on
    assert not schedule.needs_num_epochs
    assert not schedule.on_in_epoch(5, 10)


def test_on_in_epoch():
    schedule = Schedule(start=0.25, end=0.5)
    assert [schedule.on_in_epoch(e, 10, num_epochs=10) for e in range(10)] == [2 <= e < 5 for e in range(10)]


class OddBatches(Schedule):
    """On at the first and the last of three batches, and not in between."""

    def is_on(self, epochs_done, batch_idx, num_epochs=None):
        return batch_idx % 2 == 0


WINDOWS = [
    Schedule(),
    Schedule(warmup_epochs=1.5),
    Schedule(start=0.25, end=0.55),
    Schedule(interrupt=3),
    Schedule(end=0),
]


@pytest.mark.parametrize("num_batches", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("schedule", [*WINDOWS, OddBatches()], ids=repr)
def test_on_in_a_whole_epoch_is_what_every_batch_says(schedule, num_batches):
    for epoch in range(6):
        says = [schedule.is_on(epoch + i / num_batches, i, 5) for i in range(num_batches)]
        assert schedule.on_in_whole_epoch(epoch, num_batches, 5) == all(says)


def schedules():
    return [Schedule(interrupt=2), VariableStart(threshold=1.0)]


@pytest.mark.parametrize("schedule", schedules(), ids=lambda schedule: type(schedule).__name__)
def test_a_question_has_no_side_effects(schedule):
    answers = []
    for index in range(12):
        schedule.advance(0.0, index)
        state = copy.deepcopy(schedule.state_dict())
        three = [(schedule.is_on(0.0, index), schedule.wants_scores(0.0, index)) for _ in range(3)]
        schedule.on_in_epoch(0, 100)
        assert schedule.state_dict() == state
        assert len(set(three)) == 1
        answers.append(three[0])
    assert len(set(answers)) == 2, "the schedule changed its mind on the way"


def test_a_variable_start_asks_for_scores_after_batches_without_losses():
    schedule, wanted = VariableStart(threshold=1.5), []
    for index in range(33):
        schedule.advance(0.0, index)
        wanted.append(schedule.wants_scores(0.0, index))
        if wanted[-1]:
            schedule.observe(torch.ones(4))
    assert wanted == ([False] * 10 + [True]) * 3


class Counting(Schedule):
    """Counts batches. It needs no flag to say so."""

    def advance(self, *place):
        pass


@pytest.mark.parametrize("schedule", [*schedules()[1:], Counting()], ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("scorer", [sb.scorers.TrainingLossScorer(), sb.scorers.ConstantScorer()])
def test_schedules_that_decide_batch_by_batch_go_with_no_plan(schedule, scorer):
    with pytest.raises(ValueError, match="whole epoch"):
        sb.Method("mine", scorer, sb.policies.TopKPolicy(selectivity=0.5), schedule=schedule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_epochs": -1}, "warmup_epochs must be >= 0, got -1"),
        ({"start": 0.9, "end": 0.5}, "start must be before end, got 0.9 and 0.5"),
        ({"start": 5}, r"fractions of the run in \[0, 1\], got 5 and 1.0"),
        ({"interrupt": -2}, "interrupt must be a whole number >= 0, got -2"),
        ({"interrupt": 1.5}, "interrupt must be a whole number >= 0, got 1.5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**options)
