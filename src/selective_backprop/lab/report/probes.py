"""What probes saw of gradients and of the network's confidence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import numpy as np

from selective_backprop.lab.probes import read_confidence, read_gradients
from selective_backprop.lab.report.charts import (
    Palette,
    axis,
    choice,
    colors,
    is_flat,
    layer,
    of_methods,
    of_one,
    tooltip,
)
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.runs import Run, names_of
from selective_backprop.lab.report.theme import PHASES

T = TypeVar("T")

GRADIENTS = (
    "A part of a batch whose gradient agrees with the whole batch's (cosine 1, all signs equal) could stand in for it; "
    "see whether the highest losses agree better than as many random examples."
)
CONFIDENCE = (
    "Test examples go from the least to the most confident, each method in its own order; a line further up on the "
    "left is of a network that does better on hard examples."
)


def gradient_fidelity(comparisons: Sequence[Comparison], left_out: LeftOut) -> Section:
    """Gradient fidelity of runs made with `--probe gradients`."""
    parts: list[Part] = []
    for comparison in comparisons:
        rows = gradient_rows(comparison, left_out)
        parts += [
            _fidelity(comparison, rows, measure, title, number)
            for measure, title, number in _FIDELITY
            if not is_flat(rows, measure)
        ]
    return Section("gradients", "Gradient fidelity", GRADIENTS, parts)


_FIDELITY = (
    ("cosine", "Cosine similarity with the whole batch's gradient", ".1f"),
    ("equal signs", "Components with the same sign", ".0%"),
)


def _probed(comparison: Comparison, files: str) -> dict[str, list[Run]]:
    found = {
        label: [run for run in runs if any((run.path / "probes").glob(files))]
        for label, runs in comparison.by_label.items()
        if not runs[0].is_baseline
    }
    return {label: runs for label, runs in found.items() if runs}


def _read(left_out: LeftOut, what: str, runs: Sequence[Run], read: Callable[[Path], T]) -> list[T]:
    """What probes wrote in these runs, without damaged files."""
    found = [left_out.unless_damaged(f"{what}, seed {run.seed}", functools.partial(read, run.path)) for run in runs]
    return [one for one in found if one is not None]


def gradient_rows(comparison: Comparison, left_out: LeftOut) -> list[Row]:
    """Rows of how well parts agree with their batch, as means over batches and seeds."""
    rows: list[Row] = []
    for label, runs in _probed(comparison, "gradients-*.pt").items():
        seen: dict[tuple[int, bool, float], list[tuple[float, float]]] = {}
        for one in _read(left_out, f"gradients of {label}", runs, read_gradients):
            for place, epoch in enumerate(one.epochs):
                columns = (one.highest, one.fraction, one.cosine, one.equal_signs)
                for highest, fraction, *found in zip(*(column[place].tolist() for column in columns), strict=True):
                    seen.setdefault((epoch, highest, round(fraction, 6)), []).append((found[0], found[1]))
        for (epoch, highest, fraction), mine in sorted(seen.items()):
            row = {"run": label, "epoch": epoch + 1, "part": _PARTS[not highest], "fraction": fraction}
            rows.append(row | {"cosine": fmean(one for one, _ in mine), "equal signs": fmean(one for _, one in mine)})
    return rows


_PARTS = ("highest losses", "random")


def _fidelity(comparison: Comparison, rows: list[Row], measure: str, title: str, number: str) -> Figure:
    labels, epochs = list(dict.fromkeys(row["run"] for row in rows)), sorted({row["epoch"] for row in rows})
    nearest = min({row["fraction"] for row in rows}, key=lambda fraction: abs(fraction - 1 / 3))
    at = [row for row in rows if row["fraction"] == nearest and (row["run"], row["epoch"]) == (labels[0], epochs[-1])]
    alt = f"{labels[0]}, after epoch {epochs[-1]}, at {nearest:.0%} of the batch: " + "; ".join(
        f"{row['part']} {row[measure]:.2f}" for row in at
    )
    encoding = {
        "x": axis("fraction", "part of the batch", format=".0%", domain=[0, 1]),
        "y": axis(measure, measure, format=number, zero=False),
        "color": colors("part", _PARTS, PHASES[:2]),
    }
    dash: Spec = {
        "field": "epoch",
        "type": "ordinal",
        "scale": {"domain": epochs, "range": [[2, 2], [6, 3], [1, 0]][-len(epochs) :]},
        "legend": {"title": "after epoch", "titleOrient": "left", "symbolType": "stroke"},
    }
    tips = tooltip(run="run", epoch="epoch", part="part", size="fraction|.0%", agreement=f"{measure}|.3f")
    spec = of_one(labels, encoding, [layer("line", {"strokeDash": dash}), layer("point", {"tooltip": tips})])
    return Figure(f"gradients-{measure.replace(' ', '-')}-{comparison.id}", title, alt, spec, rows, comparison.id)


def confidence(comparisons: Sequence[Comparison], palette: Palette, left_out: LeftOut) -> Section:
    """Confidence of runs made with `--probe confidence`."""
    parts: list[Part] = []
    for comparison in comparisons:
        rows = confidence_rows(comparison, left_out)
        parts += [
            _by_percentile(comparison, rows, measure, title, palette)
            for measure, title in _MEASURES.items()
            if not is_flat(rows, measure)
        ]
    return Section("confidence", "Confidence on the test set", CONFIDENCE, parts)


_MEASURES = {"confidence": "Confidence in the true class", "accuracy": "Accuracy at each percentile of confidence"}


def confidence_rows(comparison: Comparison, left_out: LeftOut, bins: int = 40) -> list[Row]:
    """Rows by percentile of the confidence in the true class: mean confidence and accuracy, pooled over seeds."""
    rows: list[Row] = []
    for label, runs in _probed(comparison, "confidence-*.pt").items():
        seen = _read(left_out, f"confidence of {label}", runs, read_confidence)
        for epoch in sorted(set.intersection(*(set(one.epochs) for one in seen))) if seen else ():
            places = [one.epochs.index(epoch) for one in seen]
            values = np.concatenate([one.confidence[i] for one, i in zip(seen, places, strict=True)]).astype(np.float64)
            correct = np.concatenate([one.correct[i] for one, i in zip(seen, places, strict=True)])
            parts = np.array_split(np.argsort(values, kind="stable"), min(bins, len(values)))
            for i, part in enumerate(parts):
                row = names_of(label) | {"epoch": epoch + 1}
                means = {"confidence": float(values[part].mean()), "accuracy": float(correct[part].mean())}
                rows.append(row | {"percentile": (i + 0.5) / len(parts)} | means)
    return rows


def _by_percentile(comparison: Comparison, rows: list[Row], measure: str, title: str, palette: Palette) -> Figure:
    epochs = sorted({row["epoch"] for row in rows})
    middle = epochs[(len(epochs) - 1) // 2]  # at the end, methods differ least
    tenth = [row for row in rows if row["epoch"] == middle and abs(row["percentile"] - 0.1) < 0.0126]
    alt = f"At the 10th percentile, after epoch {middle}: " + "; ".join(
        f"{label} {next(row[measure] for row in tenth if row['run'] == label):.0%}"
        for label in dict.fromkeys(row["run"] for row in tenth)
    )
    encoding: Spec = {
        "x": axis("percentile", "test examples, from the least confident", format=".0%", domain=[0, 1]),
        "y": axis(measure, measure, format=".0%", domain=[0, 1]),
        "color": palette.color(),
        "strokeDash": palette.dash(),
        "detail": {"field": "run"},
        "tooltip": tooltip(run="run", percentile="percentile|.0%", measure=f"{measure}|.1%"),
    }
    after = choice("after", epochs, "after epoch", middle)
    spec = of_methods([layer("line", encoding)], params=[after], where=[{"filter": "datum.epoch == after"}])
    return Figure(f"confidence-{measure}-{comparison.id}", title, alt, spec, rows, comparison.id)
