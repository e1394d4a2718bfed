"""What was selected, when, and how often.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import torch

import selective_backprop as sb
from selective_backprop.lab.report.charts import (
    HIDDEN,
    SHOWN,
    Palette,
    axis,
    colors,
    is_flat,
    label_ends,
    layer,
    of_methods,
    of_one,
    tooltip,
)
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop.lab.report.logs import Floats, Log, moments
from selective_backprop.lab.report.runs import Run, names_of

READING = "Selection is at work where few candidates are trained on, and those of high loss have the highest chance."
SELECTIVE = "selective_backprop"
_EPOCH: Spec = axis("epoch", "epoch", tickMinStep=1, format="d", zero=False, nice=False)


def selection(comparisons: Sequence[Comparison], logs: Mapping[str, Mapping[str, Log]], palette: Palette) -> Section:
    """`logs` are by comparison and label."""
    parts: list[Part | None] = []
    for comparison in comparisons:
        mine = logs[comparison.id]
        parts += [_selectivity(comparison, palette), _formula(comparison, palette), _losses(comparison, mine)]
        parts += [_single_examples(comparison, mine)]
    return Section("selection", "What was selected", READING, [part for part in parts if part is not None])


def selectivity_rows(comparison: Comparison) -> list[Row]:
    """Share of candidates that were trained on, in each epoch; mean over seeds."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        length = min(len(run.records) for run in runs)
        for i in range(length):
            records = [run.records[len(run.records) - length + i] for run in runs]
            share = fmean(record["trained"] / record["offered"] for record in records)
            rows.append(names_of(label) | {"epoch": i + 1, "selectivity": share})
    return rows


def _selectivity(comparison: Comparison, palette: Palette) -> Figure | None:
    rows = selectivity_rows(comparison)
    if is_flat(rows, "selectivity"):
        return None
    ends = {row["run"]: row for row in rows}
    alt = "In the last epoch: " + "; ".join(f"{label} {row['selectivity']:.1%}" for label, row in ends.items())
    y = axis("selectivity", "share of candidates trained on", format=".0%", domain=[0, 1])
    encoding = {"x": _EPOCH, "y": y, "color": palette.color(), "detail": {"field": "run"}}
    tips = tooltip(run="run", epoch="epoch", selectivity="selectivity|.1%")
    names, height = label_ends(list(ends.values()), _EPOCH, y, palette)
    layers = [
        layer("line", encoding | {"strokeDash": palette.dash()}),
        layer("point", encoding | {"shape": palette.shape(), "tooltip": tips}),
    ]
    spec = of_methods([*layers, *names], height=height)
    return Figure(f"selectivity-{comparison.id}", "Achieved selectivity", alt, spec, rows, comparison.id)


# ---- SB's chance by the percentile of the loss

BETAS = (0.5, 1.0, 2.0, 3.0, 5.0)
_POINTS = 41


def beta_of(run: Run) -> float:
    """SB's exponent at the selectivity of this run."""
    selectivity = run.config.get("selectivity", 1 / 3)
    known = isinstance(selectivity, (int, float)) and 0.001 <= selectivity <= 1
    return sb.functional.beta_from_selectivity(selectivity if known else 1 / 3)


def formula_rows(comparison: Comparison) -> list[Row]:
    """Points of percentile ** beta: for each run with SB under its label, and for other beta to compare with."""
    mine = {label: [beta_of(runs[0])] for label, runs in comparison.by_label.items() if runs[0].method == SELECTIVE}
    if not mine:
        return []
    # Lines of almost the same beta, and their names, would be on each other.
    others = [beta for beta in BETAS if not any(0.6 < beta / max(own, 1e-9) < 1.7 for (own,) in mine.values())]
    at = torch.linspace(0, 1, _POINTS).square()  # most of them where lines with beta < 1 are steep
    rows: list[Row] = []
    for label, betas in ({"": others} | mine).items():
        for beta in betas:
            row = names_of(label) | {"beta": round(beta, 3), "selectivity": sb.functional.selectivity_from_beta(beta)}
            rows += [
                row | {"percentile": float(percentile), "chance": float(chance)}
                for percentile, chance in zip(at, sb.functional.keep_probability(at, beta), strict=True)
            ]
    return rows


def _formula(comparison: Comparison, palette: Palette) -> Figure | None:
    """A line per beta, those of the runs in the colour of their method; None if no run has SB."""
    rows = formula_rows(comparison)
    if not rows:
        return None
    x = axis("percentile", "percentile of the loss among recent losses", format=".0%", domain=[0, 1])
    y = axis("chance", "chance of selection", format=".0%", domain=[0, 1])
    tips = tooltip(run="run", beta="beta|.3~g", percentile="percentile|.0%", chance="chance|.1%")
    # Where the chance is one half, the lines are furthest apart.
    named = {row["beta"]: {"percentile": 0.5 ** (1 / row["beta"]), "chance": 0.5} for row in rows if row["beta"] > 0}
    labels = {"data": {"values": [place | {"words": f"beta {beta:.3g}"} for beta, place in named.items()]}}
    line = {"x": x, "y": y, "detail": {"field": "beta"}, "tooltip": tips}
    words = {"x": x, "y": y, "text": {"field": "words"}}
    layers = [
        layer("line", line, "datum.run === ''", color="#8a94a3", strokeDash=[4, 3], strokeWidth=1.5),
        layer("line", line | {"color": palette.color()}, "datum.run !== ''", SHOWN, strokeWidth=3),
        layer("text", words, align="left", dx=5, dy=6) | labels,
    ]
    own = {row["run"]: row for row in rows if row["run"]}
    betas = (f"{run} has beta {row['beta']:.3g}, selecting {row['selectivity']:.0%}" for run, row in own.items())
    alt = f"The larger beta, the fewer examples of low loss are selected. {'; '.join(betas)}."
    note = "Lines are percentile ^ beta, by which a share of 1 / (beta + 1) is selected. Thick lines: these runs."
    title = "Chance of selection by percentile of the loss"
    spec: Spec = {"params": [HIDDEN], "layer": layers}
    return Figure(f"chance-by-percentile-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def percentiles(losses: Floats) -> Floats:
    """(M,) share of the known losses that are at most this one; NaN where the loss is unknown.

    >>> percentiles(np.array([3.0, 1.0, np.nan, 2.0])).round(2).tolist()
    [1.0, 0.33, nan, 0.67]
    """
    found = np.full(len(losses), np.nan)
    known = np.flatnonzero(~np.isnan(losses))
    if len(known):
        found[known] = np.searchsorted(np.sort(losses[known]), losses[known], side="right") / len(known)
    return found


# ---- losses and chances in the ledgers

_QUANTILES = 31
_FLOOR = 1e-4  # smaller losses are shown here, or they would take up most of the logarithmic axis
_CDF, _CHANCE = "examples with a lower loss", "chance of selection"


def loss_rows(label: str, log: Log) -> list[Row]:
    """Quantiles of the losses, and the mean chance of selection of examples around each, at moments of training."""
    rows: list[Row] = []
    for epoch in moments(log.num_epochs):
        losses, chances = (array[epoch].astype(np.float64) for array in (log.history.loss, log.history.probability))
        known = np.flatnonzero(~np.isnan(losses))
        order = known[np.argsort(losses[known], kind="stable")]
        done = 0
        for part in np.array_split(order, min(_QUANTILES, len(order))) if len(order) else ():
            done += len(part)
            row = {"run": label, "epoch": epoch + 1, "loss": max(_FLOOR, float(np.median(losses[part])))}
            rows.append(row | {"kind": _CDF, "value": (done - len(part) / 2) / len(order)})
            if not np.isnan(chances[part]).all():
                rows.append(row | {"kind": _CHANCE, "value": float(np.nanmean(chances[part]))})
    return rows


def _losses(comparison: Comparison, logs: Mapping[str, Log]) -> Figure | None:
    rows = [row for label, log in logs.items() for row in loss_rows(label, log)]
    if not rows:
        return None
    dashes = {"domain": [_CDF, _CHANCE], "range": [[1, 0], [5, 3]]}
    encoding: Spec = {
        "x": axis("loss", "loss, on a logarithmic scale", scale_type="log", format="~g", tickCount=5),
        "y": axis("value", "share or chance", format=".0%", domain=[0, 1]),
        "color": {"field": "epoch", "type": "ordinal", "legend": {"title": "after epoch", "titleOrient": "left"}},
        "strokeDash": {"field": "kind", "scale": dashes, "legend": {"columns": 1, "symbolType": "stroke"}},
        "tooltip": tooltip(run="run", epoch="epoch", loss="loss|.3~g", what="kind", value="value|.1%"),
    }
    medians = [f"{label} {_median(log, 0):.2g} to {_median(log, -1):.2g}" for label, log in logs.items()]
    title = "Losses, and chances of selection"
    note = "Whole lines move left as losses fall; dashed ones show whom selection prefers."
    alt = f"Median loss, first to last epoch: {'; '.join(medians)}"
    spec = of_one(_choosy_first(logs), encoding, [{"mark": "line"}])
    return Figure(f"losses-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def _choosy_first(logs: Mapping[str, Log]) -> list[str]:
    """Labels, sorted so that methods with different chances come first. The others have little to show."""
    spreads = {label: float(np.ptp(np.nan_to_num(log.history.probability[-1], nan=1))) for label, log in logs.items()}
    return sorted(logs, key=lambda label: (spreads[label] == 0, logs[label].run.method != SELECTIVE))


def _median(log: Log, epoch: int) -> float:
    return float(np.nanmedian(log.history.loss[epoch].astype(np.float64)))


def with_would_be_chances(label: str, log: Log, logs: Mapping[str, Log]) -> tuple[str, Floats]:
    """Name and (epochs, M) chances of a run. Plain training selects nothing, and gets what SB would have given.

    Its percentiles are among all losses in the ledger at the end of each epoch. The beta is that of the first run with
    SB among the logs, or else 2.
    """
    if log.run.method != "traditional":
        return label, log.history.probability.astype(np.float64)
    beta = next((beta_of(other.run) for other in logs.values() if other.run.method == SELECTIVE), 2.0)
    places = np.stack([percentiles(losses.astype(np.float64)) for losses in log.history.loss])
    return f"{label} (would-be, beta {beta:.3g})", np.asarray(np.power(places, beta))


def _single_examples(comparison: Comparison, logs: Mapping[str, Log]) -> Figure | None:
    chosen: dict[str, Log] = {}
    for label, log in logs.items():
        name, chances = with_would_be_chances(label, log, logs)
        if not np.isnan(chances).all():
            chosen[name] = replace(log, history=replace(log.history, probability=chances))
    if not chosen:
        return None
    size = min(log.num_examples for log in chosen.values())
    ids = sorted({i * (size - 1) // 4 for i in range(5)})  # five examples, spread over the data
    rows = [row for label, log in chosen.items() for row in chance_rows(label, log, ids)]
    if is_flat(rows, "chance"):
        return None
    encoding: Spec = {
        "x": _EPOCH,
        "y": axis("chance", "chance of selection", format=".0%", domain=[0, 1]),
        "color": colors("example", ids, legend={"title": "example", "titleOrient": "left"}),
    }
    tips = {"tooltip": tooltip(example="example", epoch="epoch", chance="chance|.1%")}
    spec = of_one(_choosy_first(chosen), encoding, [{"mark": "line"}, layer("point", tips)])
    plain = any(log.run.method == "traditional" for log in chosen.values())
    note = "Would-be chances: what SB would give by the losses of a run that trains on everything." if plain else ""
    title, alt = "Chance of selection of single examples", f"Examples {', '.join(map(str, ids))}."
    return Figure(f"examples-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def chance_rows(label: str, log: Log, ids: Sequence[int]) -> list[Row]:
    """Rows with the selection probability of these examples after each epoch that has one."""
    chances = log.history.probability[:, ids].astype(np.float64)
    return [
        {"run": label, "example": id, "epoch": epoch + 1, "chance": round(float(chances[epoch, i]), 3)}
        for i, id in enumerate(ids)
        for epoch in range(len(chances))
        if not np.isnan(chances[epoch, i])
    ]
