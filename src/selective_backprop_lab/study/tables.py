"""Comparisons as tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selective_backprop_lab.study.curves import FACTORS, Curve, speed_up
from selective_backprop_lab.study.frontier import Budget
from selective_backprop_lab.study.standing import LabelledRuns, Standing, Standings, error_of


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


def method_table(found: Standings) -> TextTable:
    """Every method with its error and compute at its longest, and its multipliers at the same errors."""
    rows = [
        [one.name, error_of(one.budgets[-1]), f"{one.budgets[-1].cost:.2f}"]
        + [multiplier_cell(one, target, error) for target, error in found.targets.items()]
        for one in found.methods
    ]
    return TextTable(["method", "error", "compute", *(f"M at {error:.2%}" for error in found.targets.values())], rows)


def multiplier_cell(standing: Standing, target: str, error: float) -> str:
    """The lower of a method's multipliers at a target, or why there is none."""
    if standing.is_plain:
        return "baseline"
    if not standing.reaches(error):
        return "not reached"
    interval = standing.multiplier(target)
    return "not run" if interval is None else interval.short()


def arms_table(found: Sequence[LabelledRuns], targets: Mapping[str, float]) -> TextTable:
    """Every method at every length: error and costs, and whether the error is within 2% of plain training's best."""
    columns = {
        "error": [error_of(runs.compute) for runs in found],
        "compute": [f"{runs.compute.cost:.2f}" for runs in found],
        "seconds": [f"{runs.seconds.cost:.1f}" for runs in found if runs.seconds is not None],
        "seeds": [str(len(runs.compute.errors)) for runs in found],
        "lossless": ["yes" if runs.compute.error <= targets["lossless"] else "no" for runs in found if targets],
    }
    known = {name: column for name, column in columns.items() if len(column) == len(found)}
    rows = [[runs.label, *cells] for runs, *cells in zip(found, *known.values(), strict=True)]
    return TextTable(["method", *known], rows)


def speed_up_table(curves: Mapping[str, Sequence[Curve]], reference: str) -> TextTable:
    """The paper's Table 1: final error, seconds, and speed-up to multiples of the reference's final error.

    Args:
        curves: by label; of each label by seed.
        reference: label of the plain run that all are measured against.
    """
    rows = []
    for label, by_seed in curves.items():
        ends = Budget(tuple(curve.errors[-1] for curve in by_seed), tuple(curve.seconds[-1] for curve in by_seed))
        speed_ups = [speed_up(curves[reference], by_seed, factor) for factor in FACTORS]
        rows.append([label, error_of(ends), f"{ends.cost:.1f}", *speed_ups])
    return TextTable(["method", "final error", "seconds", *(f"to {factor:g}x" for factor in FACTORS)], rows)


READING = (
    "Error on the {split} of {size:,} examples after the last epoch, mean and standard deviation over {seeds} "
    "seed{plural}. Compute is in epochs of plain training (forward 1, backward 2). Both are those of a method's "
    "longest runs. M, the compute multiplier, is how many times more compute is needed for the same error without the "
    "method: by plain training, by random subsets, or by random subsets of the method's own sizes, whichever needs "
    "least, with the learning rate fully decayed. Above 1 the method is cheaper; “>” and “<” are bounds; in brackets "
    "the 95% interval of a bootstrap over seeds."
)
"""How to read the table of a comparison."""
