"""Your data, by the audits of runs that recorded dynamics."""

from __future__ import annotations

from selective_backprop.dynamics import audit
from selective_backprop.dynamics.log import FILE
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Line, Part, Table
from selective_backprop_lab.report.images import Examples
from selective_backprop_lab.report.material import Material

READING = (
    "Easy examples have a high confidence that hardly changes, ambiguous ones change most, and wrong labels are among "
    "the hard ones."
)
_LISTED = 24
_KINDS = ("easy", "ambiguous", "hard")


def your_data(comparison: Comparison, material: Material) -> list[Part]:
    """Classes and likely wrong labels, by the first run with dynamics."""
    run = next((run for run in comparison.runs if (run.path / FILE).exists()), None)
    found = None if run is None else material.read(f"dynamics of {run.label}, seed {run.seed}", audit, run.path)
    if run is None or found is None or not found.num_classes:
        return []
    examples = Examples.of(run, len(found), material.load, material.images)
    classes = [
        [examples.class_name(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        for row in found.by_class()
    ]
    heading = ["class", "examples", "wrong labels", "confidence", *_KINDS]
    parts: list[Part] = [Table("classes", f"Your data by class ({run.label}, seed {run.seed})", heading, classes)]
    if len(ids := found.suspects()):
        suspects: list[Line] = []
        for id in ids[:_LISTED]:
            names = [examples.class_name(int(one[id])) for one in (found.label, found.suggested)]
            suspects.append([examples.show(int(id)), *names, f"{found.wrong[id]:.0%}"])
        title = f"{len(ids):,} labels that are probably wrong"
        heading = ["example", "label", "suggested", "probability that it is wrong"]
        parts.append(Table("wrong", title, heading, suspects, "By the dynamics of one run; see the guide on audits."))
    return parts
