"""What probes saw of gradients and of the network's confidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import numpy as np

from selective_backprop_lab.probes import read_confidence, read_gradients
from selective_backprop_lab.report.charts import axis, choice, colors, is_flat, of_methods, of_one, share_axis
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Figure, Part, Row, Spec
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import names_of
from selective_backprop_lab.report.theme import PHASES

T = TypeVar("T")

GRADIENTS = (
    "A part of a batch whose gradient agrees with the whole batch's (cosine 1, all signs equal) could stand in for it; "
    "see whether the highest losses agree better than as many random examples."
)
CONFIDENCE = (
    "Test examples go from the least to the most confident, each method in its own order; a line further up on the "
    "left is of a network that does better on hard examples."
)


def _seen(comparison: Comparison, material: Material, kind: str, read: Callable[[Path], T]) -> dict[str, list[T]]:
    """What probes wrote in the runs of each label, without baselines and damaged files."""
    found = {
        label: [
            material.read(f"{kind} of {label}, seed {run.seed}", read, run.path)
            for run in runs
            if any((run.path / "probes").glob(f"{kind}-*.pt"))
        ]
        for label, runs in comparison.by_label.items()
        if not runs[0].is_baseline
    }
    whole = {label: [one for one in seen if one is not None] for label, seen in found.items()}
    return {label: seen for label, seen in whole.items() if seen}


# ---- gradients of runs made with `--probe gradients`

_PARTS = ("highest losses", "random")
_FIDELITY = (
    ("cosine", "Cosine similarity with the whole batch's gradient", ".1f"),
    ("equal signs", "Components with the same sign", ".0%"),
)


def gradient_fidelity(comparison: Comparison, material: Material) -> list[Part]:
    """How well gradients of parts of batches agree with those of the whole batches."""
    rows = gradient_rows(comparison, material)
    labels = list(dict.fromkeys(row["run"] for row in rows))
    legend = {"title": "after epoch", "titleOrient": "left", "symbolType": "stroke"}
    encoding: Spec = {
        "x": share_axis("fraction", "part of the batch"),
        "strokeDash": {"field": "epoch", "type": "nominal", "legend": legend},
        "color": colors("part", _PARTS, PHASES[:2]),
    }
    return [
        Figure(
            f"gradients-{measure.replace(' ', '-')}",
            title,
            of_one(labels, encoding | {"y": axis(measure, measure, format=number, zero=False)}, "line", "point"),
            rows,
        )
        for measure, title, number in _FIDELITY
        if not is_flat(rows, measure)
    ]


def gradient_rows(comparison: Comparison, material: Material) -> list[Row]:
    """Rows of how well parts agree with their batch, as means over batches and seeds."""
    rows: list[Row] = []
    for label, seen in _seen(comparison, material, "gradients", read_gradients).items():
        found: dict[tuple[int, bool, float], list[tuple[float, float]]] = {}
        for one in seen:
            for place, epoch in enumerate(one.epochs):
                columns = (one.highest, one.fraction, one.cosine, one.equal_signs)
                for highest, fraction, *both in zip(*(column[place].tolist() for column in columns), strict=True):
                    found.setdefault((epoch, highest, round(fraction, 6)), []).append((both[0], both[1]))
        for (epoch, highest, fraction), mine in sorted(found.items()):
            row = {"run": label, "epoch": epoch + 1, "part": _PARTS[not highest], "fraction": fraction}
            rows.append(row | {"cosine": fmean(one for one, _ in mine), "equal signs": fmean(one for _, one in mine)})
    return rows


# ---- confidence of runs made with `--probe confidence`

_BINS = 40
_MEASURES = {"confidence": "Confidence in the true class", "accuracy": "Accuracy at each percentile of confidence"}


def confidence(comparison: Comparison, material: Material) -> list[Part]:
    """Confidence and accuracy by percentile, after the epoch that the reader chooses."""
    rows = confidence_rows(comparison, material)
    epochs = sorted({row["epoch"] for row in rows})
    x = share_axis("percentile", "test examples, from the least confident")
    parts: list[Part] = []
    for measure, title in _MEASURES.items():
        if not is_flat(rows, measure):
            after = choice("after", epochs, "after epoch", epochs[(len(epochs) - 1) // 2])  # at the end all are alike
            lines = material.palette.lines(rows, x, share_axis(measure, measure))[:1]
            spec = of_methods(lines, params=[after], where=[{"filter": "datum.epoch == after"}])
            parts.append(Figure(f"confidence-{measure}", title, spec, rows))
    return parts


def confidence_rows(comparison: Comparison, material: Material) -> list[Row]:
    """Rows by percentile of the confidence in the true class: mean confidence and accuracy, pooled over seeds."""
    rows: list[Row] = []
    for label, seen in _seen(comparison, material, "confidence", read_confidence).items():
        for epoch in sorted(set.intersection(*(set(one.epochs) for one in seen))):
            places = [one.epochs.index(epoch) for one in seen]
            values = np.concatenate([one.confidence[i] for one, i in zip(seen, places, strict=True)]).astype(np.float64)
            correct = np.concatenate([one.correct[i] for one, i in zip(seen, places, strict=True)])
            parts = np.array_split(np.argsort(values, kind="stable"), min(_BINS, len(values)))
            for i, part in enumerate(parts):
                row = names_of(label) | {"epoch": epoch + 1, "percentile": (i + 0.5) / len(parts)}
                rows.append(row | {"confidence": float(values[part].mean()), "accuracy": float(correct[part].mean())})
    return rows
