"""How every arm of the leaderboard stands on a workload, in compute and in seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from selective_backprop_lab.leaderboard.records import CHANGED, Cell, Outcome, Store
from selective_backprop_lab.leaderboard.tuning import cells_of, chosen_rates, stores
from selective_backprop_lab.leaderboard.workloads import WORKLOADS, Workload, find_workload
from selective_backprop_lab.study.frontier import Budget
from selective_backprop_lab.study.standing import AS, PLAIN, LabelledRuns, Standings, standings

AGREEING = 1.05
"""Runs are compared in seconds if no reference is larger than another one by more than this factor."""

NEAR = 0.02
"""How far the compute of plain training may be from its length: it drops the rest of an epoch that fills no batch."""


@dataclass(frozen=True)
class Board:
    """All arms of a workload."""

    name: str
    workload: Workload
    runs: tuple[Outcome, ...]
    """Runs of the seeds that are complete for their arm."""
    comparable: tuple[Outcome, ...]
    """Those whose seconds can be compared."""

    @cached_property
    def compute(self) -> Standings:
        return standings(labelled(self.runs))

    @cached_property
    def seconds(self) -> Standings:
        return standings(labelled(self.comparable), seconds=True)

    @property
    def seeds(self) -> int:
        """Seeds that all arms have."""
        arms = {run.cell.arm for run in self.runs}
        return min(len({run.cell.seed for run in self.runs if run.cell.arm == arm}) for arm in arms)


def labelled(runs: Sequence[Outcome]) -> list[LabelledRuns]:
    """The runs as a comparison has them: by arm and length."""
    groups: dict[tuple[str, int], list[Outcome]] = {}
    for run in runs:
        groups.setdefault((run.cell.arm, run.cell.length), []).append(run)
    found = []
    for (arm, length), group in groups.items():
        errors, compute, seconds = zip(*((run.error, run.compute, run.seconds) for run in group), strict=True)
        found.append(LabelledRuns(f"{arm}, {length}", arm, Budget(errors, compute), Budget(errors, seconds)))
    return found


def comparable(runs: Sequence[Outcome]) -> list[Outcome]:
    """The most runs that one machine made at one speed: their references agree within 5%."""

    def at_speed(first: Outcome) -> list[Outcome]:
        least = min(first.reference)
        same = [run for run in runs if _machine(run) == _machine(first) and min(run.reference) >= least]
        return [run for run in same if max(run.reference) <= AGREEING * least]

    return max((at_speed(run) for run in runs), key=len, default=[])


def _machine(run: Outcome) -> tuple[object, ...]:
    return tuple(run.made.get(name) for name in ("cpu", "machine", "device"))


def with_own_arms(workload: Workload, runs: Sequence[Outcome]) -> Workload:
    """The workload with the arms of these runs that it does not have: users' own, each at its last setting."""
    own = {run.cell.arm: run.cell.setting for run in runs if not run.cell.arm.startswith(AS)}
    return dataclasses.replace(workload, arms=dict(workload.arms) | own | dict(workload.arms))


def whole_seeds(workload: Workload, rates: dict[str, float], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Runs at the settings of today, of arms and seeds with a run at each length: a part of a curve is misread."""
    found = {run.cell: run for run in outcomes}
    kept = []
    for seed in sorted({cell.seed for cell in found}):
        cells = cells_of(workload, rates, seed) if rates else []
        lacking = {cell.arm for cell in cells if cell not in found}
        kept += [found[cell] for cell in cells if cell.arm not in lacking]
    order = [arm for own in workload.arms for arm in (own, AS + own)]
    return sorted(kept, key=lambda run: (order.index(run.cell.arm), run.cell.length, run.cell.seed))


def read_boards(records: Path) -> list[Board]:
    """The board of every workload that has complete runs in a folder."""
    boards = []
    for name in (*WORKLOADS, "digits"):
        store, tried = stores(records, name)
        outcomes = list(store.outcomes.values())
        workload = with_own_arms(find_workload(name), outcomes)
        rates = chosen_rates(workload, tried)
        if runs := whole_seeds(workload, rates, outcomes):
            timed = whole_seeds(workload, rates, comparable(runs))
            boards.append(Board(name, workload, tuple(runs), tuple(timed)))
    return boards


def faults(workload: Workload, store: Store, tried: Store) -> list[str]:
    """What is wrong with the records of a workload, a sentence each.

    Args:
        workload: the workload.
        store: its runs on the test set.
        tried: its runs on held-out examples.
    """
    rates = chosen_rates(workload, tried)
    if not rates:
        return ["a trial is missing, so no rate is chosen"]
    found, expected = [], set[Cell]()
    for seed in sorted({cell.seed for cell in store.outcomes}):
        expected |= (cells := set(cells_of(workload, rates, seed)))
        found += [f"{_name(cell)}: it is missing" for cell in sorted(cells - store.outcomes.keys(), key=_name)]
    for run in store.outcomes.values():
        found += [f"{_name(run.cell)}: {fault}" for fault in _faults_of(run, expected)]
    return found


def _faults_of(run: Outcome, expected: set[Cell]) -> list[str]:
    found = []
    if run.cell not in expected:
        found.append("its setting is not that of the protocol")
    if run.error > 1:
        found.append(f"an error of {run.error} is no share")
    if run.cell.arm == PLAIN and abs(run.compute / run.cell.length - 1) > NEAR:
        found.append(f"plain training for {run.cell.length} epochs cannot cost {run.compute:.2f}")
    if str(run.made.get("commit")).endswith(CHANGED):
        found.append("the code was not as committed")
    return found


def _name(cell: Cell) -> str:
    return f"{cell.arm} ({cell.setting}, rate {cell.rate:g}), length {cell.length}, seed {cell.seed}"
