"""Checks of records that somebody sends in: what a mistake or a changed protocol would leave in them."""

from __future__ import annotations

import math

from selective_backprop_lab.leaderboard.arms import PLAIN, RANDOM
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.tuning import Chosen, lengths_of
from selective_backprop_lab.leaderboard.workloads import find_workload

NEAR = 0.02
"""How far the compute of plain training may be from its length: it drops the rest of an epoch that fills no batch."""


def faults(name: str, store: Store, trials: Store, chosen: Chosen) -> list[str]:
    """What is wrong with the records of a workload, a sentence each.

    Args:
        name: the workload.
        store: its runs on the test set.
        trials: its runs on held-out examples; empty where a paper's settings are used.
        chosen: the setting of each arm.
    """
    workload, found = find_workload(name), []
    runs = list(store.outcomes.values())
    for missing in (arm for arm in (PLAIN, RANDOM) if all(run.cell.arm != arm for run in runs)):
        found.append(f"there is no run of {missing}, a baseline")
    for run in runs:
        found += [f"{_name(run.cell)}: {fault}" for fault in _faults_of(run, chosen)]
    for seed in sorted({run.cell.seed for run in runs}):
        for arm in chosen:
            wanted = lengths_of(workload, arm, chosen[arm], trials)
            cells = (Cell(arm, chosen[arm], length, seed, False) for length in wanted)
            lacking = [str(cell.length) for cell in cells if cell not in store.outcomes]
            if lacking:
                found.append(f"seed {seed} lacks {arm} at {', '.join(lacking)} epochs")
    return found


def _faults_of(run: Outcome, chosen: Chosen) -> list[str]:
    cell, found = run.cell, []
    if cell.held_out:
        found.append("it is a trial, but stands among the runs on the test set")
    if chosen.get(cell.arm) != cell.setting:
        found.append(f"its setting is not that of the protocol, {chosen.get(cell.arm)}")
    if not 0 <= run.error <= 1:
        found.append(f"an error of {run.error} is no share")
    if not (math.isfinite(run.compute) and run.compute > 0):
        found.append(f"a compute of {run.compute} cannot be")
    elif cell.arm == PLAIN and abs(run.compute / cell.length - 1) > NEAR:
        found.append(f"plain training for {cell.length} epochs cannot cost {run.compute:.2f}")
    return found


def _name(cell: Cell) -> str:
    return f"{cell.arm} ({cell.setting}), {cell.length} epochs, seed {cell.seed}"
