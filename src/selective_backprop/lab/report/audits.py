"""Section: your data, by the audits of runs that recorded dynamics."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from selective_backprop.dynamics import Audit, audit
from selective_backprop.dynamics.log import FILE
from selective_backprop.lab.report.charts import axis, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table, rounded
from selective_backprop.lab.report.images import LoadData, thumbnail
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.runs import Run

READING = (
    "Easy examples have a high confidence that hardly changes, ambiguous ones change most, and wrong labels are among "
    "the hard ones, at the lower left of the map."
)
_MOST_POINTS, _LISTED = 2000, 24


def your_data(
    comparisons: Sequence[Comparison], left_out: LeftOut, *, load: LoadData | None = None, images: bool | None = None
) -> Section:
    """Section with the map, likely wrong labels and classes of the first run of each comparison with dynamics."""
    parts: list[Part] = []
    for comparison in comparisons:
        run = next((run for run in comparison.runs if (run.path / FILE).exists()), None)
        if run is None:
            continue
        what = f"dynamics of {run.label}, seed {run.seed}"
        found = left_out.unless_damaged(what, functools.partial(audit, run.path))
        if found is not None and found.num_classes:
            parts += [_map(comparison, run, found), _classes(comparison, found)]
            parts += _suspects(comparison, run, found, load, images)
    return Section("audit", "Your data", READING, parts)


def _map(comparison: Comparison, run: Run, found: Audit) -> Figure:
    known = np.flatnonzero(~np.isnan(found.confidence))
    ids = known[np.linspace(0, len(known) - 1, min(_MOST_POINTS, len(known))).astype(int)]
    rows: list[Row] = [
        {
            "example": int(id),
            "confidence": rounded(float(found.confidence[id])),
            "variability": rounded(float(found.variability[id])),
            "kind": str(found.kind[id]),
            "wrong": rounded(float(found.wrong[id])),
        }
        for id in ids
    ]
    spec: Spec = {
        "mark": {"type": "circle", "opacity": 0.5},
        "encoding": {
            "x": axis("variability", "variability of the probability of the label", format=".2f"),
            "y": axis("confidence", "mean probability of the label", format=".0%", domain=[0, 1]),
            "color": {"field": "kind", "type": "nominal", "scale": {"scheme": "dark2"}},
            "tooltip": tooltip(
                example="example", confidence="confidence|.2f", variability="variability|.2f", wrong="wrong|.0%"
            ),
        },
    }
    shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in ("easy", "ambiguous", "hard"))
    title = f"Map of the data ({run.label}, seed {run.seed})"
    return Figure(f"map-{comparison.id}", title, f"The data are {shares}.", spec, rows, comparison.id)


def _classes(comparison: Comparison, found: Audit) -> Table:
    heading = ["class", "examples", "wrong labels", "confidence", "easy", "ambiguous", "hard"]
    cells = [
        [str(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in ("easy", "ambiguous", "hard")]
        for row in found.by_class()
    ]
    return Table(f"classes-{comparison.id}", "Your data by class", heading, cells, comparison.id)


def _suspects(comparison: Comparison, run: Run, found: Audit, load: LoadData | None, images: bool | None) -> list[Part]:
    ids = found.suspects()
    if not len(ids):
        return []
    try:
        data = load(run) if load is not None else None
    except (ValueError, OSError, ImportError):
        data = None  # the run was made on another machine
    if data is not None and len(data.train_labels) != len(found):
        data = None
    shown = data is not None and (images if images is not None else data.name == "digits")
    heading = ["id", *(["image"] if shown else []), "label", "suggested", "probability that it is wrong"]
    cells = []
    for id in ids[:_LISTED]:
        image = [thumbnail(data.train_images[id])] if shown and data is not None else []
        cells.append([str(id), *image, str(found.label[id]), str(found.suggested[id]), f"{found.wrong[id]:.0%}"])
    every = [
        [int(id), int(found.label[id]), int(found.suggested[id]), rounded(float(found.wrong[id]))]
        for id in found.ranked()
    ]
    exported = ["id", "label", "suggested", "wrong"], every
    title = f"{len(ids):,} labels that are probably wrong"
    note = "By the dynamics of one run; see the guide on audits."
    return [Table(f"wrong-{comparison.id}", title, heading, cells, comparison.id, note, exported)]
