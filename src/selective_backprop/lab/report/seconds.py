"""Section 3: where the time went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import fmean

from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, by_label, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop.lab.report.projection import projection
from selective_backprop.lab.report.runs import Run, running_means, split_label
from selective_backprop.lab.report.targets import AT_TARGET, CHOSEN, DEFAULT, spans_to_reach
from selective_backprop.lab.report.theme import PHASES as _PHASE_COLOURS
from selective_backprop.lab.runs.training import Record

READING = (
    "Selection pays if its own passes take less than what it takes off the forward and backward passes of training."
)
PHASES = {
    "forward (selection)": "selection",
    "forward (training)": "forward",
    "backward": "backward",
    "loading": "loading",
    "other": "other",
}


def where_time_went(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """Phases, costs per batch and per epoch, and a projection, of each comparison."""
    parts: list[Part] = []
    for comparison in comparisons:
        if comparison.reference is not None:
            parts.append(_to_target(comparison))
        parts += [_per_batch(comparison), _per_epoch(comparison, palette)]
        if comparison.reference is not None and (figure := projection(comparison, palette)):
            parts.append(figure)
        parts.append(_dropped(comparison))
    return Section("seconds", "Where the time went", READING, parts)


def phase_rows(comparison: Comparison) -> list[Row]:
    """Seconds by phase until a target was reached, for all targets; or of the whole run. Means over seeds.

    A target is reached once the error is at most the target and stays so. Each row holds for the targets from `from` to
    below `to`, as multiples of the reference's final error.
    """
    assert comparison.reference is not None
    final = comparison.mean_curve(comparison.reference).errors[-1]
    rows: list[Row] = []
    for label, runs in comparison.finished.items():
        name, budget = split_label(label)
        errors = comparison.mean_curve(label).errors
        sums = {words: running_means(runs, phase(key)) for words, key in PHASES.items()}
        for start, end, reached in spans_to_reach(errors, final):
            for words in PHASES:
                spent = sums[words][-1 if reached is None else reached]
                row = {"run": label, "method": name, "budget": budget, "phase": words, "seconds": spent}
                rows.append(row | {"reached": reached is not None, "from": start, "to": end})
    return rows


def _to_target(comparison: Comparison) -> Figure:
    rows = phase_rows(comparison)
    names = list(PHASES)
    y, lookup, height = by_label(list(comparison.finished))
    at_default = [row for row in rows if row["from"] <= DEFAULT < row["to"]]
    totals = {label: sum(row["seconds"] for row in at_default if row["run"] == label) for label in comparison.finished}
    never = [row["run"] for row in at_default if not row["reached"] and row["phase"] == "other"]
    alt = f"Seconds to {DEFAULT}x of plain training's final error: " + "; ".join(
        f"{label} {total:.1f}{' (never reached)' if label in never else ''}" for label, total in totals.items()
    )
    note = "Choose the target below. Pale bars never reached it, and show the whole run."
    spec: Spec = {
        "params": [HIDDEN, CHOSEN],
        "transform": [SHOWN, AT_TARGET, lookup, {"calculate": f"indexof({names}, datum.phase)", "as": "order"}],
        "height": height,
        "mark": {"type": "bar"},
        "encoding": {
            "y": y,
            "x": axis("seconds", "seconds"),
            "color": {
                "field": "phase",
                "type": "nominal",
                "scale": {"domain": names, "range": _PHASE_COLOURS},
                "legend": {},
            },
            "opacity": {"condition": {"test": "datum.reached", "value": 1}, "value": 0.4},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tooltip(run="run", phase="phase", seconds="seconds|.3~g", reached="reached"),
        },
    }
    return Figure(f"phases-{comparison.id}", "Time to the target, by phase", alt, spec, rows, comparison.id, note=note)


def batch_rows(comparison: Comparison) -> list[Row]:
    """Milliseconds per batch, over all epochs and seeds. A selection pass is given per batch's worth of examples."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        name, budget = split_label(label)
        batches, scored = max(1.0, _total(runs, itemgetter("batches"))), _total(runs, itemgetter("scored"))
        seconds = {key: _total(runs, phase(key)) for key in PHASES.values()}
        costs = {"forward": seconds["forward"] / batches, "backward": seconds["backward"] / batches}
        if (
            scored > 0.01 * batches * runs[0].recipe["batch_size"]
        ):  # scoring the first batch as a check does not count as selection
            costs["selection pass"] = seconds["selection"] / (scored / runs[0].recipe["batch_size"])
        for kind, value in costs.items():
            rows.append({"run": label, "method": name, "budget": budget, "pass": kind, "milliseconds": 1000 * value})
    return rows


def phase(key: str) -> Callable[[Record], float]:
    """Reads its seconds from a record."""
    return lambda record: float(record["seconds"][key])


def _total(runs: Sequence[Run], value: Callable[[Record], float]) -> float:
    return float(sum(value(record) for run in runs for record in run.records))


def _per_batch(comparison: Comparison) -> Figure:
    rows = batch_rows(comparison)
    means = {
        kind: fmean(r["milliseconds"] for r in rows if r["pass"] == kind)
        for kind in dict.fromkeys(r["pass"] for r in rows)
    }
    alt = "Mean over methods: " + "; ".join(f"{kind} {value:.3g} ms" for kind, value in means.items())
    kinds = ["selection pass", "forward", "backward"]
    y, lookup, height = by_label(list(comparison.by_label))
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN, lookup],
        "height": height,
        "mark": {"type": "point", "size": 90, "opacity": 0.9},
        "encoding": {
            "y": y,
            "x": axis("milliseconds", "milliseconds per batch", zero=True),
            "color": {
                "field": "pass",
                "type": "nominal",
                "scale": {"domain": kinds, "range": [_PHASE_COLOURS[i] for i in range(3)]},
                "legend": {},
            },
            "shape": {"field": "pass", "scale": {"domain": kinds, "range": ["diamond", "circle", "square"]}},
            "tooltip": tooltip(run="run", what="pass", milliseconds="milliseconds|.3~g"),
        },
    }
    return Figure(f"batches-{comparison.id}", "Cost of a batch, forward and backward", alt, spec, rows, comparison.id)


def epoch_rows(comparison: Comparison) -> list[Row]:
    """Rows with the seconds of an epoch and the fractions of the training set dropped, as means."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        name, budget = split_label(label)
        count = sum(len(run.records) for run in runs)
        spent = _total(runs, lambda r: sum(r["seconds"].values()) - r["seconds"]["evaluation"])
        offered, scored, skipped, trained = (
            _total(runs, itemgetter(key)) for key in ("offered", "scored", "skipped_before_loading", "trained")
        )
        # A diet offers only what it left; the size of the whole training set follows from what compute is counted in.
        compute = _total(runs, itemgetter("compute"))
        diet = runs[0].method == "diet" and compute > 0
        examples = count * (scored + 3 * trained) / (3 * compute) if diet else offered
        rows.append(
            {
                "run": label,
                "method": name,
                "budget": budget,
                "seconds": spent / count,
                "before training": 1 - offered / examples,
                "before loading": skipped / examples,
                "after scoring": max(0.0, (offered - skipped - trained) / examples),
            }
        )
    return rows


def _per_epoch(comparison: Comparison, palette: Palette) -> Figure:
    rows = [{key: row[key] for key in ("run", "method", "budget", "seconds")} for row in epoch_rows(comparison)]
    y, lookup, height = by_label(list(comparison.by_label))
    alt = "Seconds per epoch: " + "; ".join(f"{row['run']} {row['seconds']:.3g}" for row in rows)
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN, lookup],
        "height": height,
        "encoding": {
            "y": y,
            # Room for the longest bar's number.
            "x": axis(
                "seconds", "seconds per epoch", domain=[0, 1.3 * max(row["seconds"] for row in rows)], nice=False
            ),
        },
        "layer": [
            {
                "mark": "bar",
                "encoding": {"color": palette.color(), "tooltip": tooltip(run="run", seconds="seconds|.3~g")},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {"field": "seconds", "type": "quantitative", "format": ".3~g"}},
            },
        ],
    }
    return Figure(f"epochs-{comparison.id}", "Seconds per epoch", alt, spec, rows, comparison.id)


def _dropped(comparison: Comparison) -> Table:
    kinds = ("before training", "before loading", "after scoring")
    cells = [
        [row["run"], f"{row['seconds']:.3g}", *(f"{row[kind]:.1%}" for kind in kinds)] for row in epoch_rows(comparison)
    ]
    title = "Share of the data that was dropped, in an epoch"
    note = (
        "Before training: pruned once and for all, by a diet. Before loading and after scoring: by selection, anew in "
        "each epoch."
    )
    return Table(
        f"dropped-{comparison.id}", title, ["method", "seconds per epoch", *kinds], cells, comparison.id, note=note
    )
