"""Section 4: what was selected, when, and how often.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from selective_backprop.lab.probes.examples import read_examples, spread
from selective_backprop.lab.report.chances import chance_by_percentile, with_would_be_chances
from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, choice, is_flat, label_ends, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.logs import Log, moments
from selective_backprop.lab.report.runs import split_label

READING = (
    "Selection is at work where few candidates are trained on, those of high loss have the highest chance, and some "
    "examples are trained on far more often than others."
)
_QUANTILES = 31
_FLOOR = 1e-4  # smaller losses are shown here, or they would take up most of the logarithmic axis
_MOST_VALUES = 10_000  # most values of single examples in a page


def selection(
    comparisons: Sequence[Comparison], logs: Mapping[str, Mapping[str, Log]], palette: Palette, left_out: LeftOut
) -> Section:
    """`logs` are by comparison and label."""
    parts: list[Part] = []
    for comparison in comparisons:
        if not is_flat(selectivity_rows(comparison), "selectivity"):
            parts.append(_selectivity(comparison, palette))
        if figure := chance_by_percentile(comparison, palette):
            parts.append(figure)
        if mine := logs[comparison.id]:
            if any(loss_rows(label, log) for label, log in mine.items()):
                parts.append(_losses(comparison, mine))
            if figure := _single_examples(comparison, mine, _MOST_VALUES // sum(map(bool, logs.values())), left_out):
                parts.append(figure)
            if not is_flat([row for label, log in mine.items() for row in times_rows(label, log)], "times"):
                parts.append(_times_trained(comparison, mine, palette))
    return Section("selection", "What was selected", READING, parts)


def selectivity_rows(comparison: Comparison) -> list[Row]:
    """Share of candidates that were trained on, in each epoch; mean over seeds."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        name, budget = split_label(label)
        length = min(len(run.records) for run in runs)
        for i in range(length):
            records = [run.records[len(run.records) - length + i] for run in runs]
            share = fmean(record["trained"] / record["offered"] for record in records)
            rows.append({"run": label, "method": name, "budget": budget, "epoch": i + 1, "selectivity": share})
    return rows


def _selectivity(comparison: Comparison, palette: Palette) -> Figure:
    rows = selectivity_rows(comparison)
    final = {row["run"]: row["selectivity"] for row in rows}
    alt = "In the last epoch: " + "; ".join(f"{label} {share:.1%}" for label, share in final.items())
    encoding = {
        "x": axis("epoch", "epoch", tickMinStep=1, format="d", zero=False, nice=False),
        "y": axis("selectivity", "share of candidates trained on", format=".0%", domain=[0, 1]),
        "color": palette.color(),
        "detail": {"field": "run"},
    }
    tips = tooltip(run="run", epoch="epoch", selectivity="selectivity|.1%")
    ends = list({row["run"]: row for row in rows}.values())
    names, height = label_ends(ends, encoding["x"], encoding["y"], palette)
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "height": height,
        "layer": [
            {"mark": "line", "encoding": encoding | {"strokeDash": palette.dash()}},
            {"mark": "point", "encoding": encoding | {"shape": palette.shape(), "tooltip": tips}},
            *names,
        ],
    }
    return Figure(f"selectivity-{comparison.id}", "Achieved selectivity", alt, spec, rows, comparison.id)


def loss_rows(label: str, log: Log) -> list[Row]:
    """Quantiles of the losses, and the mean chance of selection of examples around each, at moments of training."""
    rows: list[Row] = []
    for epoch in moments(log.num_epochs):
        losses, chances = (array[epoch].astype(np.float64) for array in (log.history.loss, log.history.probability))
        known = np.flatnonzero(~np.isnan(losses))
        if not len(known):
            continue
        order = known[np.argsort(losses[known], kind="stable")]
        parts = (
            np.array_split(order, _QUANTILES)
            if len(order) >= _QUANTILES
            else [order[i : i + 1] for i in range(len(order))]
        )
        done = 0
        for part in parts:
            done += len(part)
            row = {"run": label, "epoch": epoch + 1, "loss": max(_FLOOR, float(np.median(losses[part])))}
            rows.append(row | {"kind": _CDF, "value": (done - len(part) / 2) / len(order)})
            if not np.isnan(chances[part]).all():
                rows.append(row | {"kind": _CHANCE, "value": float(np.nanmean(chances[part]))})
    return rows


_CDF, _CHANCE = "examples with a lower loss", "chance of selection"


def _losses(comparison: Comparison, logs: Mapping[str, Log]) -> Figure:
    rows = [row for label, log in logs.items() for row in loss_rows(label, log)]
    labels = _choosy_first(logs)
    medians = [f"{label} {_median(log, 0):.2g} to {_median(log, -1):.2g}" for label, log in logs.items()]
    spec: Spec = {
        "params": [choice("chosen", labels, "method")],
        "transform": [{"filter": "datum.run === chosen"}],
        "mark": "line",
        "encoding": {
            "x": axis("loss", "loss, on a logarithmic scale", scale_type="log", format="~g", tickCount=5),
            "y": axis("value", "share or chance", format=".0%", domain=[0, 1]),
            "color": {"field": "epoch", "type": "ordinal", "legend": {"title": "after epoch", "titleOrient": "left"}},
            "strokeDash": {
                "field": "kind",
                "scale": {"domain": [_CDF, _CHANCE], "range": [[1, 0], [5, 3]]},
                "legend": {"columns": 1, "symbolType": "stroke"},
            },
            "tooltip": tooltip(run="run", epoch="epoch", loss="loss|.3~g", what="kind", value="value|.1%"),
        },
    }
    title = "Losses, and chances of selection"
    note = "Whole lines move left as losses fall; dashed ones show whom selection prefers."
    alt = f"Median loss, first to last epoch: {'; '.join(medians)}"
    return Figure(f"losses-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def _choosy_first(logs: Mapping[str, Log]) -> list[str]:
    """Labels, sorted so that methods with different chances come first. The others have little to show."""
    spreads = {label: float(np.ptp(np.nan_to_num(log.history.probability[-1], nan=1))) for label, log in logs.items()}
    return sorted(logs, key=lambda label: (spreads[label] == 0, logs[label].run.method != "selective_backprop"))


def _median(log: Log, epoch: int) -> float:
    return float(np.nanmedian(log.history.loss[epoch].astype(np.float64)))


def _single_examples(
    comparison: Comparison, logs: Mapping[str, Log], most_values: int, left_out: LeftOut
) -> Figure | None:
    chosen: dict[str, Log] = {}
    for label, log in logs.items():
        name, chances = with_would_be_chances(label, log, logs)
        if not np.isnan(chances).all():
            chosen[name] = replace(log, history=replace(log.history, probability=chances))
    if not chosen:
        return None
    size = min(log.num_examples for log in chosen.values())
    default = _probed(next(iter(chosen.values())), size, left_out)
    count = max(10, min(size, most_values // sum(log.num_epochs for log in chosen.values())))
    ids = sorted({*default, *spread(size, count)})
    rows = [row for label, log in chosen.items() for row in chance_rows(label, log, ids)]
    if is_flat(rows, "chance"):
        return None
    shown = [row for row in rows if row["example"] in default]
    labels = _choosy_first(chosen)
    spec: Spec = {
        "params": [choice("chosen", labels, "method")],
        "transform": [{"filter": "datum.run === chosen"}],
        "encoding": {
            "x": axis("epoch", "epoch", tickMinStep=1, format="d", zero=False, nice=False),
            "y": axis("chance", "chance of selection", format=".0%", domain=[0, 1]),
            "color": {
                "field": "example",
                "type": "nominal",
                "scale": {"scheme": "dark2"},
                "legend": {"title": "example", "titleOrient": "left"},
            },
        },
        "layer": [
            {"mark": "line"},
            {"mark": "point", "encoding": {"tooltip": tooltip(example="example", epoch="epoch", chance="chance|.1%")}},
        ],
    }
    changes = "; ".join(
        f"{name} {change:.1%}" for name, log in chosen.items() if (change := mean_change(log)) is not None
    )
    alt = f"Examples {', '.join(map(str, default))}, of {len(ids)} that can be chosen."
    note = f"Mean change of all examples' chances from one epoch to the next: {changes}." if changes else ""
    if any(log.run.method == "traditional" for log in chosen.values()):
        note += " Would-be chances are those that SB would give by the losses of a run that trains on everything."
    title = "Chance of selection of single examples"
    return Figure(f"examples-{comparison.id}", title, alt, spec, shown, comparison.id, "Examples", rows, note)


def mean_change(log: Log) -> float | None:
    """How much an example's chance changes from one epoch to the next, on average; None after a single epoch."""
    changes = np.abs(np.diff(log.history.probability.astype(np.float64), axis=0))
    return None if np.isnan(changes).all() else float(np.nanmean(changes))


def _probed(log: Log, size: int, left_out: LeftOut) -> list[int]:
    """The examples that were followed by a probe, or five spread over the data."""
    if (log.run.path / "probes" / "examples.jsonl").exists():
        what = f"examples followed in {log.run.label}, seed {log.run.seed}"
        states = left_out.unless_damaged(what, lambda: read_examples(log.run.path)) or []
        if ids := sorted({state.id for state in states if state.id < size})[:5]:
            return ids
    return spread(size)


def chance_rows(label: str, log: Log, ids: Sequence[int]) -> list[Row]:
    """Rows with the selection probability of these examples after each epoch that has one."""
    chances = log.history.probability[:, ids].astype(np.float64)
    return [
        {"run": label, "example": id, "epoch": epoch + 1, "chance": round(float(chances[epoch, i]), 3)}
        for i, id in enumerate(ids)
        for epoch in range(len(chances))
        if not np.isnan(chances[epoch, i])
    ]


def times_rows(label: str, log: Log) -> list[Row]:
    """How often the examples were trained on, from the least to the most, at steps of 2% of the examples.

    The last hundredth is left out. Methods that draw with replacement train on a few examples so often that the others
    could not be seen.
    """
    counts = np.sort(log.history.selected.astype(np.int64).sum(0))
    last = len(counts) - 1
    name, budget = split_label(label)
    shares = [*(i / 50 for i in range(50)), 0.99]
    return [
        {"run": label, "method": name, "budget": budget, "share": share, "times": int(counts[round(share * last)])}
        for share in shares
    ]


def _times_trained(comparison: Comparison, logs: Mapping[str, Log], palette: Palette) -> Figure:
    rows = [row for label, log in logs.items() for row in times_rows(label, log)]
    medians = "; ".join(f"{row['run']} {row['times']}" for row in rows if row["share"] == 0.5)
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": {
            "x": axis("share", "examples, the least trained on first", format=".0%"),
            "y": axis("times", "times trained on", tickMinStep=1, format="d"),
            "color": palette.color(),
            "strokeDash": palette.dash(),
            "detail": {"field": "run"},
            "tooltip": tooltip(run="run", share_of_examples="share|.0%", times="times"),
        },
    }
    title = "How often each example was trained on"
    note = "A flat line trains on all alike; the steeper, the more of it goes to a few. The last hundredth is left out."
    alt = f"Times that the median example was trained on: {medians}"
    return Figure(f"times-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)
