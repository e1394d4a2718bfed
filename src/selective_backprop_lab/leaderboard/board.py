"""How every arm of the leaderboard stands on a workload; see `standing` for what its multipliers mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selective_backprop_lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop_lab.leaderboard.records import Outcome, Store
from selective_backprop_lab.leaderboard.tuning import chosen_settings, lengths_of
from selective_backprop_lab.leaderboard.workloads import WORKLOADS, find_workload
from selective_backprop_lab.study.frontier import Bound, Budget, Frontier, Interval
from selective_backprop_lab.study.standing import lowest, multipliers, random_frontier, sortable, targets_of

Cost = Literal["compute", "cpu_seconds"]
"""What a run costs: a field of its outcome."""


@dataclass(frozen=True)
class Place:
    """An arm on a workload."""

    arm: str
    setting: str
    seeds: int
    """Fewest seeds of any of its lengths."""
    points: tuple[Budget, ...]
    """Errors and compute at each length, rising."""
    plain: Mapping[str, Interval]
    """Multiplier against plain training by target; empty for plain training."""
    random: Mapping[str, Interval]
    """Multiplier against random subsets by target; empty for these."""

    def against_both(self, target: str) -> Interval | None:
        """The lower of the multipliers against both baselines; None for the baselines themselves."""
        if self.arm in (PLAIN, RANDOM):
            return None
        return lowest(self.plain[target], self.random[target])


@dataclass(frozen=True)
class Board:
    """All arms of a workload, baselines first, then by their multiplier at the middle error."""

    workload: str
    targets: Mapping[str, float]
    places: tuple[Place, ...]

    def place(self, arm: str) -> Place | None:
        """The place of an arm; None if it was not run here."""
        return next((place for place in self.places if place.arm == arm), None)

    def cost(self, arm: str, target: str) -> float | None:
        """Compute that an arm needs for a target error; None if it does not get there."""
        if (place := self.place(arm)) is None:
            return None
        cost, bound = Frontier(place.points).cost_of(self.targets[target])
        return None if bound is Bound.MORE else cost


def make_board(workload: str, outcomes: Sequence[Outcome], cost: Cost = "compute") -> Board:
    """Compare all arms of a workload that have runs on the test set.

    Args:
        workload: its name.
        outcomes: runs of the chosen settings.
        cost: what M counts: compute, or seconds of processor time.
    """
    arms = dict.fromkeys(run.cell.arm for run in outcomes)
    runs = {arm: _points([run for run in outcomes if run.cell.arm == arm], cost) for arm in arms}
    if PLAIN not in runs or RANDOM not in runs:
        raise ValueError(f"{workload} has no runs of {PLAIN} or of {RANDOM}: nothing can be compared without both")
    targets = targets_of(runs[PLAIN])
    random_subsets = random_frontier(runs[RANDOM], runs[PLAIN])
    places = [
        Place(
            arm,
            next(run.cell.setting for run in outcomes if run.cell.arm == arm),
            min(len(point.errors) for point in points),
            points,
            {} if arm == PLAIN else multipliers(runs[PLAIN], points, targets, resamples=1000),
            {} if arm in (PLAIN, RANDOM) else multipliers(random_subsets, points, targets, resamples=1000),
        )
        for arm, points in runs.items()
    ]
    return Board(workload, targets, tuple(sorted(places, key=_order)))


def _points(runs: Sequence[Outcome], cost: Cost) -> tuple[Budget, ...]:
    lengths = sorted({run.cell.length for run in runs})
    by_length = ([run for run in runs if run.cell.length == length] for length in lengths)
    return tuple(
        Budget(tuple(run.error for run in part), tuple(getattr(run, cost) for run in part)) for part in by_length
    )


def _order(place: Place) -> tuple[int, float]:
    found = place.against_both("middle")
    return {PLAIN: 0, RANDOM: 1}.get(place.arm, 2), 0.0 if found is None else -sortable(found)[1]


def read_boards(records: Path, cost: Cost = "compute") -> list[Board]:
    """The board of every workload that has runs on the test set, made from runs of the chosen settings."""
    found = []
    for name in (*WORKLOADS, "digits"):
        chosen = chosen_settings(name, records)
        outcomes = Store(records / f"{name}.jsonl").outcomes.values()
        current = [one for one in outcomes if chosen.get(one.cell.arm) == one.cell.setting]
        workload, trials = find_workload(name), Store(records / f"{name}.tuning.jsonl")
        arms = {one.cell.arm for one in current}
        if whole := whole_seeds(current, {arm: lengths_of(workload, arm, chosen[arm], trials) for arm in arms}):
            found.append(make_board(name, whole, cost))
    if not found:
        raise ValueError(f"{records} holds no runs of the leaderboard: run leaderboard tune and leaderboard run first")
    return found


def read_trials(boards: Sequence[Board], records: Path) -> dict[str, list[Outcome]]:
    """The runs on held-out examples of each board's workload."""
    names = [one.workload for one in boards]
    return {name: list(Store(records / f"{name}.tuning.jsonl").outcomes.values()) for name in names}


def whole_seeds(outcomes: Sequence[Outcome], lengths: Mapping[str, Sequence[int]]) -> list[Outcome]:
    """Leave out an arm's seeds that lack a run at some length: a curve without its ends would be misread.

    Plain training, random subsets and the ledger at its defaults keep only the seeds that all of them have.

    Args:
        outcomes: runs of any arms.
        lengths: the lengths at which each arm is run.
    """
    found = {(one.cell.arm, one.cell.length, one.cell.seed) for one in outcomes}
    seeds = {seed for _, _, seed in found}
    whole = {arm: {one for one in seeds if all((arm, n, one) in found for n in lengths[arm])} for arm in lengths}
    first = [arm for arm in (PLAIN, RANDOM, DEFAULT.name) if arm in whole]
    for arm in first:
        whole[arm] = set.intersection(*(whole[other] for other in first))
    return [one for one in outcomes if one.cell.seed in whole[one.cell.arm]]


def performance_profile(boards: Sequence[Board], target: str, factors: Sequence[float]) -> dict[str, list[float]]:
    """For each arm the share of workloads on which its compute for the target is within each factor of the best arm's.

    An arm that does not reach the target is infinitely far from the best. Arms that lack a workload are left out.
    """
    names = [{place.arm for place in one.places} for one in boards]
    arms = [place.arm for place in boards[0].places if all(place.arm in found for found in names)]
    profile: dict[str, list[float]] = {}
    for arm in arms:
        distances = []
        for one in boards:
            costs = {name: cost for name in arms if (cost := one.cost(name, target)) is not None}
            distances.append(costs[arm] / min(costs.values()) if arm in costs else math.inf)
        profile[arm] = [sum(distance <= factor for distance in distances) / len(distances) for factor in factors]
    return profile
