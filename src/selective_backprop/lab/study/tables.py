"""Comparisons as tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from selective_backprop.lab.study.comparison import Curves
from selective_backprop.lab.study.curves import AXES, FACTORS, Axis, Curve, speed_up
from selective_backprop.lab.study.frontier import Interval
from selective_backprop.lab.study.standing import Standing, error_of


@dataclass(frozen=True)
class TextTable:
    """A heading and rows of words."""

    heading: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """
        >>> print(TextTable(["a", "b"], [["1", "2"]]).markdown())
        | a | b |
        | --- | ---: |
        | 1 | 2 |
        """
        rule = ["---", *["---:"] * (len(self.heading) - 1)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [self.heading, rule, *self.rows])


def standing_table(found: Sequence[Standing], *, clock: bool = False) -> TextTable:
    """Every arm with its error, its compute, and its compute multipliers against both baselines.

    clock: with the multiplier in seconds, too.
    """
    heading = ["method", "error", "compute", "M to plain", "M to random"]
    rows = [
        [
            standing.label,
            error_of(standing.runs.compute),
            f"{standing.runs.compute.cost:.2f}",
            _multiplier(standing.plain, own=standing.is_plain),
            _multiplier(standing.random, own=standing.is_random),
            *([_multiplier(standing.seconds, own=standing.is_plain)] if clock else []),
            {True: "yes", False: "no", None: "not known"}[standing.lossless],
        ]
        for standing in found
    ]
    return TextTable([*heading, *(["M in seconds"] if clock else []), "lossless"], rows)


def _multiplier(interval: Interval | None, *, own: bool) -> str:
    return "frontier" if own else "not run" if interval is None else interval.short()


def speed_up_table(curves: Curves, reference: str, axis: Axis, factors: Sequence[float] = FACTORS) -> TextTable:
    """The paper's Table 1: final error, cost, and speed-up to multiples of the reference's final error.

    Args:
        curves: by label; of each label by seed.
        reference: label of the plain run that all are measured against.
        axis: what is to be saved, seconds or compute.
        factors: the targets, as multiples of the reference's final error.
    """
    rows = [
        [label, final_error(by_seed), cost(by_seed, axis)]
        + [str(speed_up(curves[reference], by_seed, factor, axis)) for factor in factors]
        for label, by_seed in curves.items()
    ]
    return TextTable(["method", "final error", axis, *(f"to {factor:g}x" for factor in factors)], rows)


def final_error(by_seed: Sequence[Curve]) -> str:
    """Mean and standard deviation over seeds."""
    errors = [100 * curve.errors[-1] for curve in by_seed]
    return f"{fmean(errors):.2f}%" + (f" ± {stdev(errors):.2f}" if len(errors) > 1 else "")


def cost(by_seed: Sequence[Curve], axis: Axis) -> str:
    """Cost of whole runs, as a mean over seeds."""
    mean = Curve.mean(by_seed)
    return f"{mean.seconds[-1]:.1f}" if axis == "seconds" else f"{mean.compute[-1]:.2f}"


def sweep_table(curves: Curves) -> TextTable:
    """Final error and cost of every run of a sweep."""
    rows = [[label, final_error(by_seed), *(cost(by_seed, axis) for axis in AXES)] for label, by_seed in curves.items()]
    return TextTable(["run", "final error", *AXES], rows)


def frontier_table(points: dict[str, list[str]]) -> TextTable:
    """Each method's share of a Pareto frontier, and the runs it has there."""
    total = sum(len(labels) for labels in points.values())
    rows = [
        [method, f"{len(labels) / total:.0%}", f"{len(labels)} of {total}", "; ".join(sorted(set(labels)))]
        for method, labels in points.items()
    ]
    return TextTable(["method", "share", "points", "runs"], rows)


READING = (
    "Error on the {split} of {size:,} examples after the last epoch, mean and standard deviation over {seeds} "
    "seed{plural}. Compute is in epochs of plain training (forward 1, backward 2). M, the compute multiplier, is how "
    "many times more compute plain training, or random subsets, need for the same error, each with its learning rate "
    "fully decayed within its budget; in brackets the 95% interval of a bootstrap over seeds. Above 1 the method is "
    "cheaper. Lossless: an error within 2% of the best of plain training."
)
"""How to read the first table."""

SPEED_READING = (
    "Speed-ups are against the longest plain run, to multiples of its final error: median of the seeds, and in "
    "brackets the lowest and highest. They flatter, because a plain run that is longer than it needs to be is a weak "
    "opponent: go by M."
)
"""How to read the second table."""
