"""Outcomes of runs that never ran, with known multipliers."""

from selective_backprop_lab.leaderboard.records import Cell, Outcome
from selective_backprop_lab.leaderboard.tuning import cells_of, chosen_rates, trials
from selective_backprop_lab.leaderboard.workloads import find_workload

DIGITS = find_workload("digits")
MADE = {"commit": "abc1234", "cpu": "one", "machine": "here", "device": "cpu"}
EPOCHS = ({"offered": 100, "trained": 50},)
ERRORS = dict(zip(DIGITS.lengths, (0.4, 0.2, 0.15, 0.1), strict=True))


def outcome(cell, error, compute, *, seconds=2.0, reference=(1.0, 1.0), **made):
    return Outcome(cell, error, compute, compute / 10, seconds, reference, EPOCHS, MADE | made)


def fill(store, tried, shares, seeds=2, worse=None, **more):
    """Runs of the digits that reach plain training's errors with these shares of its compute; 1 for other arms.

    One arm is worse: its errors are higher by 5 points.
    """
    for cell in trials(DIGITS):
        tried.add(outcome(cell, abs(cell.rate - 1), 1.0))
    for seed in range(seeds):
        for cell in cells_of(DIGITS, chosen_rates(DIGITS, tried), seed):
            error = ERRORS[cell.length] + (0.05 if cell.arm == worse else 0)
            store.add(outcome(cell, error, cell.length * shares.get(cell.arm, 1.0), **more))


def cell_of(arm, length=1, seed=0):
    setting = DIGITS.arms[arm.removeprefix("random as ")]
    prefix = "random as " if arm.startswith("random as ") else ""
    return Cell(arm, prefix + setting, 1.0, length, seed)
