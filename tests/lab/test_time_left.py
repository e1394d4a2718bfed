"""The estimate of the time that a comparison will still take, on a clock that the test turns."""

import random

import pytest

from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.time_left import TimeLeft
from selective_backprop_lab.study.comparison import Design

COSTS = {"traditional": 1.0, "repeated_random": None, "ledger_backprop": 0.45, "selective_backprop": 0.9}
"""What an epoch takes, against one of plain training; random subsets take their share."""


@pytest.mark.parametrize("lengths", [[8], [2, 4, 8]])
@pytest.mark.parametrize("busy", [0.0, 1.0], ids=["quiet", "busy"])
def test_the_estimate_holds_within_half_on_a_busy_machine(lengths, busy):
    methods = [MethodSpec.parse("ledger"), MethodSpec.parse("sb")]
    design, now, chance = Design(methods, find_recipe("digits").with_(epochs=8), lengths), [0.0], random.Random(0)
    entries = [entry for seed in range(3) for entry in design.entries(seed)]
    left = TimeLeft(entries, clock=lambda: now[0])
    assert left.seconds is None and str(left) == "unknown"
    told = []
    now[0] += 60  # imports, and the data
    for entry in entries:
        for epoch in range(entry.settings.epochs):
            cost = COSTS[entry.settings.method] or entry.settings.selectivity
            took = 10 * cost * (1 + busy * chance.random())  # others take up to half of the machine
            now[0] += took + 0.5
            left.note(entry, {"epoch": epoch, "seconds": {"forward": took}})
            told.append((now[0], left.seconds))
    for when, estimate in told[: len(told) * 9 // 10]:
        assert estimate == pytest.approx(now[0] - when, rel=0.5)
    assert left.seconds == 0


def test_epochs_of_an_earlier_command_are_counted_and_not_measured():
    design, now = Design([], find_recipe("digits").with_(epochs=4), [2, 4]), [0.0]
    two, random_subset, four = design.entries(0)
    left = TimeLeft([two, random_subset, four], clock=lambda: now[0])
    left.note(two, {"epoch": 1, "seconds": {"forward": 9.0}})
    assert left.seconds is None
    now[0] = 3.0
    left.note(four, {"epoch": 0, "seconds": {"forward": 2.0, "backward": 3.0}})
    # Three epochs of plain training, and four of random subsets that take half of the data.
    assert left.seconds == pytest.approx(3.0 * 3 + 3.0 * 4 / 2)


def test_nothing_is_left_where_all_runs_were_made_before():
    (run,) = Design([], find_recipe("digits").with_(epochs=4), [4], baselines=(1.0,)).entries(0)
    left = TimeLeft([run])
    left.note(run, {"epoch": 3})
    assert str(left) == "less than a minute"
