"""Curves of error against time and compute, and how soon a target is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

FACTORS = (1.1, 1.2, 1.4)
"""Targets, as multiples of plain training's final error."""


@dataclass(frozen=True)
class Curve:
    """The test error after each epoch, and the cost up to then."""

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
        """Mean curve over seeds of the same length, epoch by epoch."""
        columns = zip(*((curve.errors, curve.seconds, curve.compute) for curve in curves), strict=True)
        return cls(*([fmean(values) for values in zip(*column, strict=True)] for column in columns))

    def reached_at(self, target: float) -> int | None:
        """Epoch, counted from 0, from which on the error stays at or below the target; None if the last one is above.

        >>> curve = Curve([0.3, 0.1, 0.2, 0.1], seconds=[1.0] * 4, compute=[1.0] * 4)
        >>> curve.reached_at(0.15), curve.reached_at(0.2), curve.reached_at(0.05)
        (3, 1, None)
        """
        reached = len(self.errors)
        while reached and self.errors[reached - 1] <= target:
            reached -= 1
        return reached if reached < len(self.errors) else None


def speed_up(traditional: Sequence[Curve], curves: Sequence[Curve], factor: float) -> str:
    """How many times sooner a method reaches a multiple of plain training's final error: median, lowest and highest.

    Each seed is measured against the plain run with the same seed; the curves of both are in the order of seeds. A seed
    that never gets there counts as slower than all others.

    >>> slow, fast = Curve([0.2, 0.1], [10, 20], [1, 2]), Curve([0.2, 0.1], [4, 8], [1, 2])
    >>> speed_up([slow], [fast], 1.1)
    '2.50 (2.50-2.50)'
    """
    ratios = sorted(_ratio(*pair, factor) for pair in zip(traditional, curves, strict=True))
    if not ratios[-1]:
        return "never"
    low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
    median = (low + high) / 2 if low else 0.0  # two in the middle are averaged, unless one never gets there
    middle, lowest, highest = ("never" if not ratio else f"{ratio:.2f}" for ratio in (median, ratios[0], ratios[-1]))
    return f"{middle} ({lowest}-{highest})"


def _ratio(traditional: Curve, curve: Curve, factor: float) -> float:
    target = factor * traditional.errors[-1]
    theirs, ours = traditional.reached_at(target), curve.reached_at(target)
    assert theirs is not None  # its last error is within any factor of itself
    return 0.0 if ours is None else traditional.seconds[theirs] / curve.seconds[ours]
