"""Which runs there are: trials of the baselines' learning rates on held-out examples, and runs on the test set."""

from __future__ import annotations

import random
from pathlib import Path

from selective_backprop_lab.leaderboard.records import Cell, Store
from selective_backprop_lab.leaderboard.workloads import Workload
from selective_backprop_lab.study.standing import AS, PLAIN, RANDOM

RATES = (0.5, 1.0, 2.0)
"""Factors on the recipe's learning rate that plain training and random subsets try."""
TUNING_SEED = 1_000
"""Seed of all trials. No run on the test set has it."""


def trials(workload: Workload) -> list[Cell]:
    """Runs at the shortest length on held-out examples, by which the baselines choose their rates."""
    arms = {arm: workload.arms[arm] for arm in (PLAIN, RANDOM) if workload.is_tuned}
    return [Cell(*arm, rate, workload.lengths[0], TUNING_SEED, held_out=True) for arm in arms.items() for rate in RATES]


def chosen_rates(workload: Workload, store: Store) -> dict[str, float]:
    """The rate of each arm: that of the lowest held-out error; methods take plain training's.

    It is empty while a trial is missing.
    """
    if store.missing(trials(workload)):
        return {}
    best = dict.fromkeys((PLAIN, RANDOM), 1.0)
    for arm in best if workload.is_tuned else ():
        tried = [store.outcomes[cell] for cell in trials(workload) if cell.arm == arm]
        best[arm] = min(tried, key=lambda outcome: outcome.error).cell.rate
    return {arm: best.get(arm, best[PLAIN]) for arm in workload.arms}


def cells_of(workload: Workload, rates: dict[str, float], seed: int) -> list[Cell]:
    """All runs of a seed on the test set, in an order drawn by it: a change of the machine hits all arms alike.

    Random subsets of a method's sizes come right after the method.
    """
    arms = workload.arms.items()
    own = [Cell(arm, setting, rates[arm], length, seed) for arm, setting in arms for length in workload.lengths]
    random.Random(seed).shuffle(own)
    found = []
    for cell in own:
        found.append(cell)
        if cell.arm not in (PLAIN, RANDOM):
            found.append(Cell(AS + cell.arm, AS + cell.setting, cell.rate, cell.length, seed))
    return found


def stores(records: Path, name: str) -> tuple[Store, Store]:
    """A workload's records on the test set, and those on held-out examples."""
    return Store(records / f"{name}.jsonl"), Store(records / f"{name}.tuning.jsonl")
