"""Curves of error against time and compute: how soon a target is reached, and which runs are on the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal

Axis = Literal["seconds", "compute"]
AXES: tuple[Axis, ...] = ("seconds", "compute")
FACTORS = (1.1, 1.2, 1.4)
"""Targets, as multiples of plain training's final error."""


@dataclass(frozen=True)
class Curve:
    """The test error after each epoch, and the cost up to then.

    >>> curve = Curve(errors=[0.3, 0.2, 0.1], seconds=[5.0, 9.0, 12.0], compute=[1.0, 1.5, 2.0])
    >>> curve.cost_of(0.2, "seconds"), curve.cost_of(0.05, "seconds")
    (9.0, None)
    """

    errors: list[float]
    seconds: list[float]
    """Seconds up to each epoch, without evaluation."""
    compute: list[float]
    """Compute up to each epoch, in epochs of Traditional training."""

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> Curve:
        """Make a curve from the records of a run."""
        seconds = accumulate(sum(r["seconds"].values()) - r["seconds"]["evaluation"] for r in records)
        compute = accumulate(float(r["compute"]) for r in records)
        return cls([r["test_error"] for r in records], list(seconds), list(compute))

    @classmethod
    def mean(cls, curves: Sequence[Curve]) -> Curve:
        """Mean curve over seeds, epoch by epoch. Curves of different lengths are aligned at their ends."""
        length = min(len(curve.errors) for curve in curves)

        def mean(columns: list[list[float]]) -> list[float]:
            return [fmean(values) for values in zip(*(column[-length:] for column in columns), strict=True)]

        return cls(
            mean([c.errors for c in curves]), mean([c.seconds for c in curves]), mean([c.compute for c in curves])
        )

    def cost_of(self, target: float, axis: Axis) -> float | None:
        """Cost after which the error stays at or below the target; None if it never does."""
        costs = self.seconds if axis == "seconds" else self.compute
        reached = None
        for cost, error in zip(costs, self.errors, strict=True):
            if error > target:
                reached = None
            elif reached is None:
                reached = cost
        return reached


@dataclass(frozen=True)
class SpeedUp:
    """How many times sooner a method reaches a target than plain training; None if it never does.

    Each seed is measured against the plain run with the same seed and its final error.
    """

    median: float | None
    lowest: float | None
    highest: float | None

    def __str__(self) -> str:
        if self.highest is None:
            return "never"
        return f"{_times(self.median)} ({_times(self.lowest)}-{_times(self.highest)})"


def _times(ratio: float | None) -> str:
    return "never" if ratio is None else f"{ratio:.2f}"


def speed_up(traditional: Sequence[Curve], curves: Sequence[Curve], factor: float, axis: Axis) -> SpeedUp:
    """Speed-up to a multiple of plain training's final error. The curves of both are in the order of seeds.

    A seed that never gets there counts as slower than all others.

    >>> slow, fast = Curve([0.2, 0.1], [10, 20], [1, 2]), Curve([0.2, 0.1], [4, 8], [1, 2])
    >>> str(speed_up([slow], [fast], 1.1, "seconds"))
    '2.50 (2.50-2.50)'
    """
    ratios = sorted(_ratio(*pair, factor, axis) for pair in zip(traditional, curves, strict=True))
    return SpeedUp(*(ratio or None for ratio in (_median(ratios), ratios[0], ratios[-1])))


def _ratio(traditional: Curve, curve: Curve, factor: float, axis: Axis) -> float:
    target = factor * traditional.errors[-1]
    theirs, ours = traditional.cost_of(target, axis), curve.cost_of(target, axis)
    assert theirs is not None  # its last error is within any factor of itself
    return 0.0 if ours is None else theirs / ours


def _median(ratios: Sequence[float]) -> float:
    """Median. Two in the middle are averaged, unless one of them never gets there."""
    low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
    return (low + high) / 2 if low else 0.0


def pareto_frontier(curves: dict[str, Curve], axis: Axis) -> list[tuple[str, float, float]]:
    """Pareto frontier: label, cost and error of points that no run beats at the same cost or less.

    >>> a, b = Curve([0.3, 0.1], [1, 2], [1, 2]), Curve([0.2, 0.15], [1, 3], [1, 3])
    >>> pareto_frontier({"a": a, "b": b}, "seconds")
    [('b', 1, 0.2), ('a', 2, 0.1)]
    """
    points = sorted(
        (cost, error, label)
        for label, curve in curves.items()
        for cost, error in zip(curve.seconds if axis == "seconds" else curve.compute, curve.errors, strict=True)
    )
    frontier: list[tuple[str, float, float]] = []
    for cost, error, label in points:
        if not frontier or error < frontier[-1][2]:
            frontier.append((label, cost, error))
    return frontier
