"""How every arm stands on a workload: its compute multiplier at the same errors, with intervals.

Every arm has a frontier of its own, error against compute at five lengths. For a target error e,

    M(e) = (compute at which plain training reaches e) / (compute at which the arm reaches e)

and likewise against random subsets. Targets are errors of plain training: at its second length (cheap), at its middle
length (middle), and its best one (lossless).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selective_backprop.lab.leaderboard.arms import PLAIN, RANDOM
from selective_backprop.lab.leaderboard.records import Outcome
from selective_backprop.lab.study.frontier import LOSSLESS, Bound, Budget, Frontier, Interval, compute_multiplier


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
    cpu_seconds: float
    """Mean processor time of its longest runs."""

    def against_both(self, target: str) -> Interval | None:
        """The lower of the multipliers against both baselines; None for the baselines themselves."""
        if self.arm in (PLAIN, RANDOM):
            return None
        return min((self.plain[target], self.random[target]), key=_lowest)


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


def make_board(workload: str, outcomes: Sequence[Outcome]) -> Board:
    """Compare all arms of a workload that have runs on the test set.

    Args:
        workload: its name.
        outcomes: runs of the chosen settings.
    """
    runs = {arm: _points([run for run in outcomes if run.cell.arm == arm]) for arm in _arms(outcomes)}
    if PLAIN not in runs or RANDOM not in runs:
        raise ValueError(f"{workload} has no runs of {PLAIN} or of {RANDOM}: nothing can be compared without both")
    targets = _targets(Frontier(runs[PLAIN]))
    # Random subsets of everything are plain training: its longer runs go on where the longest run of a subset ends.
    dearest = max(point.cost for point in runs[RANDOM])
    random_subsets = [*runs[RANDOM], *(point for point in runs[PLAIN] if point.cost > dearest)]
    places = []
    for arm, points in runs.items():
        of_arm = [run for run in outcomes if run.cell.arm == arm]
        longest = max(run.cell.length for run in of_arm)
        times = [run.cpu_seconds for run in of_arm if run.cell.length == longest]
        places.append(
            Place(
                arm,
                of_arm[-1].cell.setting,
                min(len(point.errors) for point in points),
                points,
                {} if arm == PLAIN else _multipliers(runs[PLAIN], points, targets),
                {} if arm in (PLAIN, RANDOM) else _multipliers(random_subsets, points, targets),
                sum(times) / len(times),
            )
        )
    return Board(workload, targets, tuple(sorted(places, key=_order)))


def _multipliers(
    baseline: Sequence[Budget], points: Sequence[Budget], targets: Mapping[str, float]
) -> dict[str, Interval]:
    return {name: compute_multiplier(baseline, points, error, resamples=1000) for name, error in targets.items()}


def _targets(plain: Frontier) -> dict[str, float]:
    errors = [budget.error for budget in plain.budgets]
    cheap, middle = errors[min(1, len(errors) - 1)], errors[len(errors) // 2]
    return {"cheap": max(cheap, plain.best), "middle": max(middle, plain.best), "lossless": LOSSLESS * plain.best}


def _points(runs: Sequence[Outcome]) -> tuple[Budget, ...]:
    lengths = sorted({run.cell.length for run in runs})
    by_length = ([run for run in runs if run.cell.length == length] for length in lengths)
    return tuple(Budget(tuple(run.error for run in part), tuple(run.compute for run in part)) for part in by_length)


def _arms(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(run.cell.arm for run in outcomes))


def _order(place: Place) -> tuple[int, float]:
    found = place.against_both("middle")
    return {PLAIN: 0, RANDOM: 1}.get(place.arm, 2), 0.0 if found is None else -_lowest(found)[1]


def _lowest(interval: Interval) -> tuple[bool, float]:
    return interval.multiple.bound is not Bound.LESS, interval.multiple.value


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
