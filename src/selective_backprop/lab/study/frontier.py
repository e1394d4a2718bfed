"""The frontier of plain training, and how many times more compute it needs for a method's error.

A frontier is made of runs at several budgets, each with its learning rate fully decayed within its budget. A method
that reaches error e with compute c has the compute multiplier

    M = (compute at which the frontier reaches e) / c

Above 1 the method is cheaper than plain training for the same error. Between two budgets the frontier is a straight
line of error against log compute. Beyond its ends M is a bound, never an extrapolation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

LOSSLESS = 1.02
"""A lossless error is at most this many times the best error of the frontier."""
EQUAL_COST = 1.02
"""For bounds, costs that differ by a smaller factor count as equal, because budgets are met only to a batch."""


@dataclass(frozen=True)
class Arm:
    """Runs of one method at one budget, which differ only in their seed.

    >>> arm = Arm(errors=(0.25, 0.75), costs=(2.0, 2.0))
    >>> arm.error, arm.cost
    (0.5, 2.0)
    """

    errors: tuple[float, ...]
    """Final error of each run."""
    costs: tuple[float, ...]
    """What each run cost: epochs of compute, or seconds."""

    def __post_init__(self) -> None:
        if not self.errors or len(self.errors) != len(self.costs):
            raise ValueError(
                f"an arm needs one error and one cost per run, got {len(self.errors)} errors and "
                f"{len(self.costs)} costs"
            )
        for name, values in (("error", self.errors), ("cost", self.costs)):
            wrong = [value for value in values if not math.isfinite(value) or value < 0]
            if wrong:
                raise ValueError(f"the {name} of a run must be a number >= 0, got {wrong[0]}")
        if min(self.costs) == 0:
            raise ValueError("a run that cost nothing cannot be compared: its cost is 0")

    @property
    def error(self) -> float:
        """Mean over seeds."""
        return fmean(self.errors)

    @property
    def cost(self) -> float:
        """Mean over seeds."""
        return fmean(self.costs)

    def resampled(self, chance: random.Random) -> Arm:
        """An arm of equally many runs, drawn from these with replacement."""
        rows = [chance.randrange(len(self.errors)) for _ in self.errors]
        return Arm(tuple(self.errors[row] for row in rows), tuple(self.costs[row] for row in rows))


class Bound(StrEnum):
    """Whether a multiplier is a number or only a bound."""

    EXACT = "exact"
    MORE = "more than"
    """The frontier never gets that low, even at its largest budget."""
    LESS = "less than"
    """The frontier is already that low at its smallest budget."""


@dataclass(frozen=True)
class Multiple:
    """How many times more than a method the frontier spends.

    >>> str(Multiple(1.9, Bound.MORE)), str(Multiple(1.25))
    ('more than 1.90x', '1.25x')
    """

    value: float
    bound: Bound = Bound.EXACT

    def __str__(self) -> str:
        return f"{self.value:.2f}x" if self.bound is Bound.EXACT else f"{self.bound} {self.value:.2f}x"

    def short(self) -> str:
        """With a sign instead of words."""
        sign = {Bound.EXACT: "", Bound.MORE: ">", Bound.LESS: "<"}[self.bound]
        return f"{sign}{self.value:.2f}"


class Frontier:
    """Mean error against mean cost, at several budgets.

    Args:
        arms: one for each budget, in any order.

    >>> frontier = Frontier([Arm((0.5,), (1.0,)), Arm((0.25,), (4.0,))])
    >>> frontier.cost_of(0.375)
    (2.0, <Bound.EXACT: 'exact'>)
    """

    def __init__(self, arms: Sequence[Arm]) -> None:
        if not arms:
            raise ValueError("a frontier needs at least one budget")
        self.arms = sorted(arms, key=lambda arm: arm.cost)
        points = [(arm.cost, arm.error) for arm in self.arms]
        # A larger budget with a higher mean error is left out: the smaller one reached a lower error already.
        self.points = [point for i, point in enumerate(points) if all(point[1] < error for _, error in points[:i])]
        """(cost, error) of the budgets at which the error is lower than at every smaller one."""

    @property
    def best(self) -> float:
        """The lowest mean error."""
        return self.points[-1][1]

    def cost_of(self, error: float) -> tuple[float, Bound]:
        """Cost at which the frontier's mean error is as low as this."""
        first_cost, first_error = self.points[0]
        if error > first_error:
            return first_cost, Bound.LESS
        if error < self.best:
            return self.arms[-1].cost, Bound.MORE  # even the largest budget did not reach it
        previous = self.points[0]
        for cost, reached in self.points:
            if error >= reached:
                if reached == previous[1]:
                    return cost, Bound.EXACT
                share = (previous[1] - error) / (previous[1] - reached)
                return previous[0] * (cost / previous[0]) ** share, Bound.EXACT
            previous = (cost, reached)
        raise AssertionError("an error between the first and the best is reached")

    def multiple(self, arm: Arm) -> Multiple:
        """How many times more than the arm the frontier spends for the arm's error."""
        cost, bound = self.cost_of(arm.error)
        return Multiple(cost / arm.cost, bound)

    def is_lossless(self, arm: Arm) -> bool:
        """Whether the arm's error is within 2% of the frontier's best."""
        return arm.error <= LOSSLESS * self.best

    def resampled(self, chance: random.Random) -> Frontier:
        """The frontier of runs drawn anew at each budget."""
        return Frontier([arm.resampled(chance) for arm in self.arms])


@dataclass(frozen=True)
class Interval:
    """A multiplier with its bootstrap interval over seeds; None for a single seed, which has no spread."""

    multiple: Multiple
    low: Multiple | None
    high: Multiple | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.multiple} (one seed: no interval)"
        if self.multiple.bound is not Bound.EXACT and self.low.bound is self.high.bound is self.multiple.bound:
            return str(self.multiple)  # the ends say no more
        return f"{self.multiple} ({self.low.short()} to {self.high.short()})"

    def short(self) -> str:
        """For tables, with signs instead of words.

        >>> Interval(Multiple(1.5), Multiple(1.2), Multiple(1.9, Bound.MORE)).short()
        '1.50x (1.20 to >1.90)'
        """
        if self.low is None or self.high is None:
            return f"{self.multiple.short()}x (1 seed)"
        if self.multiple.bound is not Bound.EXACT and self.low.bound is self.high.bound is self.multiple.bound:
            return f"{self.multiple.short()}x"
        return f"{self.multiple.short()}x ({self.low.short()} to {self.high.short()})"


def compute_multiplier(
    frontier: Frontier, arm: Arm, *, resamples: int = 2000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """The multiplier of an arm against a frontier, with a bootstrap interval over the seeds of both.

    Args:
        frontier: of plain training, or of random subsets.
        arm: the method's runs at one budget.
        resamples: how often all runs are drawn anew.
        confidence: share of the resamples inside the interval.
        seed: seed of the draws.

    >>> frontier = Frontier([Arm((0.4, 0.4), (1.0, 1.0)), Arm((0.2, 0.2), (4.0, 4.0))])
    >>> str(compute_multiplier(frontier, Arm((0.3, 0.3), (1.0, 1.0))))
    '2.00x (2.00 to 2.00)'
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    multiple = frontier.multiple(arm)
    if min(len(other.errors) for other in [arm, *frontier.arms]) < 2:
        return Interval(multiple, None, None)
    chance = random.Random(seed)
    drawn = [frontier.resampled(chance).multiple(arm.resampled(chance)) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    # "Less than 2x" may be anything down to nothing, "more than 2x" anything above: they go to the ends.
    lowest = sorted(drawn, key=lambda found: (found.bound is not Bound.LESS, found.value))
    highest = sorted(drawn, key=lambda found: (found.bound is Bound.MORE, found.value))
    return Interval(multiple, lowest[int(tail * resamples)], highest[math.ceil((1 - tail) * resamples) - 1])


class Verdict(StrEnum):
    """What is known about a method against its baselines."""

    BETTER = "better than plain training and random subsets"
    SAME = "not told apart"
    WORSE = "worse"
    NOT_CHECKED = "not checked"


def verdict(against: Sequence[Interval | None]) -> Verdict:
    """Verdict from the multipliers against plain training and random subsets; None for one that was not run.

    >>> verdict([Interval(Multiple(1.5), Multiple(1.2), Multiple(1.8)), None])
    <Verdict.NOT_CHECKED: 'not checked'>
    """
    known = [interval for interval in against if interval is not None]
    if any(_is_below(interval) for interval in known):
        return Verdict.WORSE  # one baseline that beats it is enough
    if len(known) < len(against) or any(interval.low is None or not says_anything(interval) for interval in known):
        return Verdict.NOT_CHECKED
    return Verdict.BETTER if all(_is_above(interval) for interval in known) else Verdict.SAME


def says_anything(interval: Interval) -> bool:
    """Whether a multiplier tells which of the two is cheaper. "Less than 2x" and "more than 0.5x" do not.

    >>> says_anything(Interval(Multiple(2.0, Bound.LESS), None, None))
    False
    """
    value, bound = interval.multiple.value, interval.multiple.bound
    if bound is Bound.LESS:
        return value <= EQUAL_COST
    return bound is Bound.EXACT or value >= 1 / EQUAL_COST


def _is_above(interval: Interval) -> bool:
    low = interval.low
    if low is None or low.bound is Bound.LESS:
        return False
    # A baseline that spent as much and did not reach the error is worse, however little its budget is below ours.
    return low.value > 1 or (low.value >= 1 / EQUAL_COST and low.bound is Bound.MORE)


def _is_below(interval: Interval) -> bool:
    high = interval.high
    if high is None or high.bound is Bound.MORE:
        return False
    return high.value < 1 or (high.value <= EQUAL_COST and high.bound is Bound.LESS)
