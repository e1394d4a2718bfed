"""Comparisons as tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from selective_backprop.lab.study.comparison import Curves
from selective_backprop.lab.study.curves import AXES, FACTORS, Axis, Curve, speed_up


@dataclass(frozen=True)
class TextTable:
    """A heading and rows of words."""

    heading: list[str]
    rows: list[list[str]]

    def rich(self, title: str) -> Table:
        """For the terminal; the spread goes below its mean, to save width."""
        table = Table(title=title, title_justify="left", box=SIMPLE, collapse_padding=True, pad_edge=False)
        for index, words in enumerate(self.heading):
            widest = max(len(row[index]) for row in self.rows)
            table.add_column(words, justify="right" if index else "left", min_width=None if index else min(20, widest))
        for row in self.rows:
            table.add_row(*(escape(cell).replace(" (", "\n(").replace(" ±", "\n±") for cell in row))
        return table

    def markdown(self) -> str:
        """
        >>> print(TextTable(["a", "b"], [["1", "2"]]).markdown())
        | a | b |
        | --- | ---: |
        | 1 | 2 |
        """
        rule = ["---", *["---:"] * (len(self.heading) - 1)]
        return "\n".join(f"| {' | '.join(row)} |" for row in [self.heading, rule, *self.rows])


def comparison_table(curves: Curves, reference: str, axis: Axis) -> TextTable:
    """The paper's Table 1: final error, cost, and speed-up to multiples of the reference's final error.

    Args:
        curves: by label; of each label by seed.
        reference: label of Traditional.
        axis: what is to be saved, seconds or compute.
    """
    rows = [
        [label, final_error(by_seed), cost(by_seed, axis)]
        + [str(speed_up(curves[reference], by_seed, factor, axis)) for factor in FACTORS]
        for label, by_seed in curves.items()
    ]
    return TextTable(["method", "final error", axis, *(f"to {factor}x" for factor in FACTORS)], rows)


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
    "Error on the {split} after the last epoch, mean and standard deviation over {seeds} seeds; seconds without "
    "evaluation; compute in epochs of Traditional training (forward 1, backward 2). Speed-ups are against Traditional, "
    "to multiples of its final error: of the mean curves, and in brackets the lowest and highest of a seed."
)
"""How to read the table."""
