"""Your data, by the audits of runs that recorded dynamics."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from selective_backprop.dynamics import Audit, audit
from selective_backprop.dynamics.log import FILE
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Part, Section, Table
from selective_backprop.lab.report.images import LoadData, Shown
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.runs import Run

READING = (
    "Easy examples have a high confidence that hardly changes, ambiguous ones change most, and wrong labels are among "
    "the hard ones."
)
_LISTED = 24
_KINDS = ("easy", "ambiguous", "hard")


def your_data(
    comparisons: Sequence[Comparison], left_out: LeftOut, *, load: LoadData | None = None, images: bool | None = None
) -> Section:
    """Section with the classes and likely wrong labels of the first run with dynamics in each comparison."""
    parts: list[Part] = []
    for comparison in comparisons:
        run = next((run for run in comparison.runs if (run.path / FILE).exists()), None)
        if run is None:
            continue
        what = f"dynamics of {run.label}, seed {run.seed}"
        found = left_out.unless_damaged(what, functools.partial(audit, run.path))
        if found is None or not found.num_classes:
            continue
        shown = Shown.of(run, len(found), load, images)
        parts += [_classes(comparison, run, found, shown), *_suspects(comparison, found, shown)]
    return Section("audit", "Your data", READING, parts)


def _classes(comparison: Comparison, run: Run, found: Audit, shown: Shown) -> Table:
    heading = ["class", "examples", "wrong labels", "confidence", *_KINDS]
    cells = [
        [shown.class_name(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        for row in found.by_class()
    ]
    return Table(
        f"classes-{comparison.id}", f"Your data by class ({run.label}, seed {run.seed})", heading, cells, comparison.id
    )


def _suspects(comparison: Comparison, found: Audit, shown: Shown) -> list[Part]:
    ids = found.suspects()
    if not len(ids):
        return []
    heading = ["id", *shown.columns, "label", "suggested", "probability that it is wrong"]
    cells = [
        [str(id), *(show(int(id)) for show in shown.columns.values())]
        + [shown.class_name(int(label)) for label in (found.label[id], found.suggested[id])]
        + [f"{found.wrong[id]:.0%}"]
        for id in ids[:_LISTED]
    ]
    title = f"{len(ids):,} labels that are probably wrong"
    note = "By the dynamics of one run; see the guide on audits."
    return [Table(f"wrong-{comparison.id}", title, heading, cells, comparison.id, note)]
