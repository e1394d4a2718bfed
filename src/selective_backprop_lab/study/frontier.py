"""The frontier of plain training, and how many times more compute it needs for a method's error.

A frontier is made of runs at several budgets, each with its learning rate fully decayed within its budget. A method
that reaches error e with compute c has the compute multiplier

    M = (compute at which the frontier reaches e) / c

Above 1 the method is cheaper than plain training for the same error. Between two budgets the frontier is a straight
line of error against log compute. Beyond its ends M is a bound, never an extrapolation.

# R = resamples, B = budgets, S = seeds
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

LOSSLESS = 1.02
"""A lossless error is at most this many times the best error of the frontier."""
EQUAL_COST = 1.02
"""For bounds, costs that differ by a smaller factor count as equal, because budgets are met only to a batch."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Budget:
    """Runs of one method at one budget, which differ only in their seed.

    >>> budget = Budget(errors=(0.25, 0.75), costs=(2.0, 2.0))
    >>> budget.error, budget.cost
    (0.5, 2.0)
    """

    errors: tuple[float, ...]
    """Final error of each run."""
    costs: tuple[float, ...]
    """What each run cost: epochs of compute, or seconds."""

    def __post_init__(self) -> None:
        if not self.errors or len(self.errors) != len(self.costs):
            raise ValueError(
                f"a budget needs one error and one cost per run, got {len(self.errors)} errors and "
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


class Bound(StrEnum):
    """Whether a multiplier is a number or only a bound."""

    EXACT = "exact"
    MORE = "more than"
    """The frontier never gets that low, even at its largest budget."""
    LESS = "less than"
    """The frontier is already that low at its smallest budget."""


@dataclass(frozen=True)
class Multiple:
    """How many times more than a method the frontier spends. It is infinite, and less than that, if nothing is known.

    >>> str(Multiple(1.9, Bound.MORE)), str(Multiple(1.25)), Multiple(math.inf, Bound.LESS).short()
    ('more than 1.90x', '1.25x', '?')
    """

    value: float
    bound: Bound = Bound.EXACT

    def __str__(self) -> str:
        if self.value == math.inf:
            return "nobody knows how many times"
        return f"{self.value:.2f}x" if self.bound is Bound.EXACT else f"{self.bound} {self.value:.2f}x"

    def short(self) -> str:
        """With a sign instead of words."""
        if self.value == math.inf:
            return "?"
        sign = {Bound.EXACT: "", Bound.MORE: ">", Bound.LESS: "<"}[self.bound]
        return f"{sign}{self.value:.2f}"


class Frontier:
    """Mean error against mean cost, at several budgets.

    Args:
        budgets: in any order.

    >>> frontier = Frontier([Budget((0.5,), (1.0,)), Budget((0.25,), (4.0,))])
    >>> frontier.cost_of(0.375)
    (2.0, <Bound.EXACT: 'exact'>)
    """

    def __init__(self, budgets: Sequence[Budget]) -> None:
        if not budgets:
            raise ValueError("a frontier needs at least one budget")
        self.budgets = sorted(budgets, key=lambda budget: budget.cost)

    @property
    def best(self) -> float:
        """The lowest mean error."""
        return min(budget.error for budget in self.budgets)

    def cost_of(self, error: float) -> tuple[float, Bound]:
        """Cost at which the frontier's mean error is as low as this."""
        cost, side = _costs_of(*_means(self.budgets), np.array([error]))
        return float(cost[0]), _BOUNDS[int(side[0])]

    def multiple(self, budget: Budget) -> Multiple:
        """How many times more than the runs of this budget the frontier spends for their error."""
        cost, bound = self.cost_of(budget.error)
        return Multiple(cost / budget.cost, bound)


_BOUNDS = {-1: Bound.LESS, 0: Bound.EXACT, 1: Bound.MORE}


def _means(budgets: Sequence[Budget]) -> tuple[Numbers, Numbers]:
    """Mean cost and mean error of each budget, (1, B)."""
    return np.array([[budget.cost for budget in budgets]]), np.array([[budget.error for budget in budgets]])


def _costs_of(costs: Numbers, errors: Numbers, wanted: Numbers) -> tuple[Numbers, NDArray[np.int64]]:
    """Costs at which R frontiers, (R, B), reach errors, (R,). The second result is -1 for less, 1 for more than that.

    A larger budget with a higher mean error is left out: the smaller one reached a lower error already.
    """
    # Means that are equal must not differ by the order in which they were summed.
    errors, wanted = errors.round(12), wanted.round(12)
    rows, order = np.arange(len(costs)), costs.argsort(axis=1, kind="stable")
    costs, errors = np.take_along_axis(costs, order, 1), np.take_along_axis(errors, order, 1)
    lowest = np.minimum.accumulate(errors, axis=1)  # (R, B): up to each budget
    before = np.concatenate([np.full((len(costs), 1), np.inf), lowest[:, :-1]], axis=1)
    last = np.maximum.accumulate(np.where(errors < before, np.arange(costs.shape[1]), -1), axis=1)
    found = (lowest <= wanted[:, None]).argmax(axis=1)  # the first budget that reaches it
    previous = last[rows, np.maximum(found - 1, 0)]
    (c0, e0), (c1, e1) = ((costs[rows, at], errors[rows, at]) for at in (previous, found))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(e0 > e1, (e0 - wanted) / (e0 - e1), 1.0)
        between = c0 * (c1 / c0) ** share
    side = np.where(wanted > errors[:, 0], -1, np.where(wanted < lowest[:, -1], 1, 0))
    return np.select([side < 0, side > 0], [costs[:, 0], costs[:, -1]], between), side


@dataclass(frozen=True)
class Interval:
    """A multiplier with its bootstrap interval over seeds; None for a single seed, which has no spread."""

    multiple: Multiple
    low: Multiple | None
    high: Multiple | None

    def __str__(self) -> str:
        return f"{self.multiple}{self._span('one seed: no interval')}"

    def short(self) -> str:
        """For tables, with signs instead of words.

        >>> Interval(Multiple(1.5), Multiple(1.2), Multiple(1.9, Bound.MORE)).short()
        '1.50x (1.20 to >1.90)'
        """
        if self.multiple.value == math.inf:
            return "not known"
        return f"{self.multiple.short()}x{self._span('1 seed')}"

    def _span(self, one_seed: str) -> str:
        if self.low is None or self.high is None:
            return f" ({one_seed})"
        if self.multiple.bound is not Bound.EXACT and self.low.bound is self.high.bound is self.multiple.bound:
            return ""  # the ends say no more
        return f" ({self.low.short()} to {self.high.short()})"


def compute_multiplier(
    baseline: Sequence[Budget],
    method: Sequence[Budget],
    error: float | None = None,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Cost of a baseline over that of a method for the same error, with a bootstrap interval over the seeds of both.

    Args:
        baseline: plain training or random subsets, at several budgets.
        method: the method's runs, at one or several budgets.
        error: the error to reach. None: the method's own, at its single budget.
        resamples: how often all runs are drawn anew.
        confidence: share of the resamples inside the interval.

    >>> plain = [Budget((0.4, 0.4), (1.0, 1.0)), Budget((0.2, 0.2), (4.0, 4.0))]
    >>> str(compute_multiplier(plain, [Budget((0.3, 0.3), (1.0, 1.0))]))
    '2.00x (2.00 to 2.00)'
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    values, sides = _multiples(_means(baseline), _means(method), error)
    multiple = Multiple(float(values[0]), _BOUNDS[int(sides[0])])
    if min(len(budget.errors) for budget in (*baseline, *method)) < 2:
        return Interval(multiple, None, None)
    costs, errors = _resampled([*baseline, *method], resamples)
    own = len(baseline)
    values, sides = _multiples((costs[:, :own], errors[:, :own]), (costs[:, own:], errors[:, own:]), error)
    tail = (1 - confidence) / 2
    # "Less than 2x" may be anything down to nothing, "more than 2x" anything above: they go to the ends.
    low = np.lexsort((values, sides != -1))[int(tail * resamples)]
    high = np.lexsort((values, sides == 1))[math.ceil((1 - tail) * resamples) - 1]
    return Interval(multiple, *(Multiple(float(values[at]), _BOUNDS[int(sides[at])]) for at in (low, high)))


def _resampled(budgets: Sequence[Budget], resamples: int) -> tuple[Numbers, Numbers]:
    """Mean costs and errors, (R, B), of runs that are drawn anew with replacement at each budget."""
    drawn = _drawn(tuple(len(budget.errors) for budget in budgets), resamples)
    costs = [np.array(budget.costs)[runs].mean(1) for budget, runs in zip(budgets, drawn, strict=True)]
    errors = [np.array(budget.errors)[runs].mean(1) for budget, runs in zip(budgets, drawn, strict=True)]
    return np.stack(costs, axis=1), np.stack(errors, axis=1)


@lru_cache(maxsize=16)  # many comparisons have the same numbers of seeds
def _drawn(counts: tuple[int, ...], resamples: int) -> list[NDArray[np.int64]]:
    """Which runs are drawn at each budget, (R, S): the same at every call."""
    chance = random.Random(0)
    drawn = np.array([[chance.randrange(n) for n in counts for _ in range(n)] for _ in range(resamples)])
    return np.split(drawn, np.cumsum(counts)[:-1], axis=1)


def _multiples(
    baseline: tuple[Numbers, Numbers], method: tuple[Numbers, Numbers], error: float | None
) -> tuple[Numbers, NDArray[np.int64]]:
    """Cost of R baselines over that of R methods, and on which side of the ratio it is, as `_costs_of` has it."""
    wanted = method[1][:, 0] if error is None else np.full(len(method[1]), error)
    (theirs, of_theirs), (ours, of_ours) = _costs_of(*baseline, wanted), _costs_of(*method, wanted)
    # Where the baseline is only known to need more, or the method to need less, M is larger than the ratio.
    above, below = (of_theirs == 1) | (of_ours == -1), (of_theirs == -1) | (of_ours == 1)
    neither = above & below  # reaches it: nothing is known, so any multiplier is possible
    return np.where(neither, np.inf, theirs / ours), np.where(neither | below, -1, np.where(above, 1, 0))


class Verdict(StrEnum):
    """What is known about a method against its baselines."""

    BETTER = "better"
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
