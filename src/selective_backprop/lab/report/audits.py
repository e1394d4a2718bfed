"""Your data, by the audits of runs that recorded dynamics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from selective_backprop.dynamics import Audit, Duplicates, audit
from selective_backprop.dynamics.log import FILE
from selective_backprop.dynamics.neighbours import FILE as DUPLICATES
from selective_backprop.lab.data.sources import FILE as SOURCES
from selective_backprop.lab.data.sources import read_sources
from selective_backprop.lab.report.charts import axis, colors, layer, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table, Text, rounded
from selective_backprop.lab.report.images import LoadData, Shown
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.study import redundancy

READING = (
    "Easy examples have a high confidence that hardly changes, ambiguous ones change most, and wrong labels are among "
    "the hard ones, at the lower left of the map."
)
_MOST_POINTS, _LISTED = 2000, 24
_KINDS = ("easy", "ambiguous", "hard")


def your_data(
    comparisons: Sequence[Comparison], left_out: LeftOut, *, load: LoadData | None = None, images: bool | None = None
) -> Section:
    """Section with the map, likely wrong labels, duplicates, classes and what was not needed.

    It is about the first run of each comparison that has dynamics.
    """
    parts: list[Part] = []
    for comparison in comparisons:
        run = next((run for run in comparison.runs if (run.path / FILE).exists()), None)
        if run is None:
            continue
        of_run = f"of {run.label}, seed {run.seed}"
        found = _audit(run, left_out, of_run)
        if found is None or not found.num_classes:
            continue
        shown = Shown.of(run, len(found), load, images)
        parts += [_map(comparison, run, found), _groups(comparison, found, "class", found.by_class(), shown.class_name)]
        if (run.path / SOURCES).exists():
            read = functools.partial(read_sources, run.path / SOURCES, len(found))
            if (sources := left_out.unless_damaged(f"sources {of_run}", read)) is not None:
                parts.append(_groups(comparison, found, "source", found.by(sources), str))
        parts += _suspects(comparison, found, shown)
        parts += _duplicates(comparison, found, shown)
        parts += _estimate(comparison, found)
        if (run.path / redundancy.FILE).exists():
            curve = left_out.unless_damaged(
                f"redundancy {of_run}", functools.partial(redundancy.Redundancy.load, run.path)
            )
            parts += [] if curve is None else _curve(comparison, curve)
    return Section("audit", "Your data", READING, parts)


def _audit(run: Run, left_out: LeftOut, of_run: str) -> Audit | None:
    copies = None
    if (run.path / DUPLICATES).exists():
        copies = left_out.unless_damaged(
            f"near-duplicates {of_run}", functools.partial(Duplicates.load, run.path / DUPLICATES)
        )
    return left_out.unless_damaged(f"dynamics {of_run}", functools.partial(audit, run.path, features=copies))


def _map(comparison: Comparison, run: Run, found: Audit) -> Figure:
    known = np.flatnonzero(~np.isnan(found.confidence))
    ids = known[np.linspace(0, len(known) - 1, min(_MOST_POINTS, len(known))).astype(int)]
    numbers = {"confidence": found.confidence, "variability": found.variability, "wrong": found.wrong}
    rows: list[Row] = [
        {"example": int(id), "kind": str(found.kind[id])}
        | {name: rounded(float(values[id])) for name, values in numbers.items()}
        for id in ids
    ]
    tips = {"wrong": "wrong|.0%", "confidence": "confidence|.2f", "variability": "variability|.2f"}
    encoding: Spec = {
        "x": axis("variability", "variability of the probability of the label", format=".2f"),
        "y": axis("confidence", "mean probability of the label", format=".0%", domain=[0, 1]),
        "color": colors("kind", _KINDS),
        "tooltip": tooltip(example="example", **tips),
    }
    spec = layer("circle", encoding, opacity=0.5)
    shares = ", ".join(f"{(found.kind == kind).mean():.0%} {kind}" for kind in _KINDS)
    title = f"Map of the data ({run.label}, seed {run.seed})"
    return Figure(f"map-{comparison.id}", title, f"The data are {shares}.", spec, rows, comparison.id)


def _cells(shown: Shown, id: int, label: int) -> list[str]:
    return [str(id), *(show(id) for show in shown.columns.values()), shown.class_name(int(label))]


def _groups(
    comparison: Comparison, found: Audit, what: str, rows: list[dict[str, Any]], name: Callable[[Any], str]
) -> Table:
    copied = bool((found.nearest >= 0).any())
    heading = [what, "examples", "wrong labels", "confidence", *_KINDS, "redundant", *(["duplicates"] * copied)]
    cells = [
        [name(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        + [f"{row['redundant']:.0%}", *([f"{row['duplicates']:,}"] * copied)]
        for row in rows
    ]
    note = "Redundant: never wrong after the first epoch, an estimate from this run alone."
    id = f"{'classes' if what == 'class' else 'sources'}-{comparison.id}"
    return Table(id, f"Your data by {what}", heading, cells, comparison.id, note)


def _suspects(comparison: Comparison, found: Audit, shown: Shown) -> list[Part]:
    ids = found.suspects()
    if not len(ids):
        return []
    heading = ["id", *shown.columns, "label", "suggested", "probability that it is wrong"]
    cells = []
    for id in ids[:_LISTED]:
        suggested = shown.class_name(int(found.suggested[id]))
        cells.append([*_cells(shown, int(id), found.label[id]), suggested, f"{found.wrong[id]:.0%}"])
    title = f"{len(ids):,} labels that are probably wrong"
    note = "By the dynamics of one run; see the guide on audits."
    return [Table(f"wrong-{comparison.id}", title, heading, cells, comparison.id, note)]


def _duplicates(comparison: Comparison, found: Audit, shown: Shown) -> list[Part]:
    if not (found.nearest >= 0).any():
        return []
    groups, members = int(found.duplicate.max()) + 1, int((found.duplicate >= 0).sum())
    clashes = len(np.unique(found.duplicate[found.conflict == 1]))
    words = (
        f"**{groups:,} groups of near-duplicates** with {members:,} examples, by the features of the run's network "
        f"(cosine {found.duplicate_threshold:.4f} or more: at most 0.13 times the median distance to the nearest "
        f"neighbour). {clashes:,} of them have two labels: where they show the same thing, at least one is wrong."
    )
    parts: list[Part] = [Text(words, comparison.id)]
    # Groups with two labels first: they are certain errors where the examples are the same.
    order = sorted(range(groups), key=lambda group: (not (found.conflict[found.duplicate == group] == 1).any(), group))
    cells = []
    for group in order[:_LISTED]:
        ids = np.flatnonzero(found.duplicate == group)
        first = int(ids[0])
        other = next((int(id) for id in ids[1:] if found.label[id] != found.label[first]), int(ids[1]))
        cells.append(
            [str(len(ids))]
            + [cell for id in (first, other) for cell in _cells(shown, id, found.label[id])]
            + ["two labels" if found.label[first] != found.label[other] else ""]
        )
    if cells:
        heading = ["examples", *(["id", *shown.columns, "label"] * 2), ""]
        note = "Two examples of each group, those with different labels first."
        parts.append(Table(f"duplicates-{comparison.id}", "Near-duplicates", heading, cells, comparison.id, note))
    return parts


def _estimate(comparison: Comparison, found: Audit) -> list[Part]:
    if not (found.redundant >= 0).any():
        return []
    words = (
        f"**Estimate** of what was not needed, from this run alone: {(found.redundant == 1).mean():.0%} of the "
        "examples were never wrong after the first epoch. This is about each example alone. What leaving many out "
        "together costs can only be measured, with selective-backprop audit RUN --redundancy 0.25,0.5,0.75."
    )
    return [Text(words, comparison.id)]


def _curve(comparison: Comparison, curve: redundancy.Redundancy) -> list[Part]:
    names = {
        redundancy.AUDIT: "likely wrong and easy ones left out, by the audit",
        redundancy.RANDOM: "left out at random",
    }
    rows: list[Row] = [
        {"kept": point.share, "ranking": names[ranking], "error": rounded(point.error.value)}
        | {"low": rounded(max(0.0, point.error.low)), "high": rounded(point.error.high), "examples": point.examples}
        for ranking in names
        for point in curve.of(ranking)
    ]
    legend = {"orient": "bottom", "title": None, "columns": 1, "labelLimit": 320, "symbolOpacity": 1}
    y = axis("error", "held-out error", format="~%", zero=False)
    tips = tooltip(kept="kept|.0%", examples="examples", error="error|.2%", low="low|.2%", high="high|.2%")
    spec: Spec = {
        "encoding": {
            "x": axis("kept", "share of the examples kept", format=".0%", domain=[0, 1]),
            "color": colors("ranking", list(names.values()), legend=legend),
        },
        "layer": [
            layer("area", {"y": y | {"field": "low"}, "y2": {"field": "high"}}, opacity=0.15),
            layer("line", {"y": y}),
            layer("point", {"y": y, "tooltip": tips}, filled=True, size=60),
        ],
    }
    alt = "; ".join(f"{row['ranking']}, {row['kept']:.0%} kept: {row['error']:.2%}" for row in rows)
    title = f"Measured: how much of the data is needed ({curve.model}, {curve.seeds} seeds)"
    note = (
        f"Networks trained again on a part of the data, with as many steps as on everything, and tested on the "
        f"{curve.split} ({curve.held_out:,} examples). Bands are 90% intervals over seeds and held-out examples."
    )
    return [
        Figure(f"redundancy-{comparison.id}", title, f"Held-out error: {alt}.", spec, rows, comparison.id, note=note),
        Text(f"**Measured:** {curve.verdict()}", comparison.id),
    ]
