"""What was selected, when, and how often.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import numpy as np
import torch

import selective_backprop as sb
from selective_backprop_lab.report.charts import EPOCH, axis, colors, is_flat, of_methods, of_one, share_axis
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Figure, Part, Row, Spec
from selective_backprop_lab.report.logs import Floats, Log, moments, read_logs
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import Run, method_and_budget, names_of

READING = "Selection is at work where few candidates are trained on, and those of high loss have the highest chance."
SELECTIVE = "selective_backprop"


def selection(comparison: Comparison, material: Material) -> list[Part]:
    """Shares, chances and losses of a workload."""
    logs = read_logs(comparison, material)
    figures = (_selectivity(comparison, material), _formula(comparison), _losses(logs), _single_examples(logs))
    return [figure for figure in figures if figure is not None]


def selectivity_rows(comparison: Comparison) -> list[Row]:
    """Share of candidates that were trained on, in each epoch; mean over seeds."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        for epoch, records in enumerate(zip(*(run.records for run in runs), strict=True), 1):
            share = fmean(record["trained"] / record["offered"] for record in records)
            rows.append(names_of(label) | {"epoch": epoch, "selectivity": share})
    return rows


def _selectivity(comparison: Comparison, material: Material) -> Figure | None:
    rows = selectivity_rows(comparison)
    if is_flat(rows, "selectivity"):
        return None
    lines = material.palette.lines(rows, EPOCH, share_axis("selectivity", "share of candidates trained on"))
    return Figure("selectivity", "Achieved selectivity", of_methods(lines), rows)


# ---- SB's chance by the percentile of the loss

BETAS = (0.5, 1.0, 2.0, 3.0, 5.0)
_POINTS = 41


def beta_of(run: Run) -> float:
    """SB's exponent at the selectivity of this run."""
    selectivity = run.config.get("selectivity", 1 / 3)
    known = isinstance(selectivity, (int, float)) and 0.001 <= selectivity <= 1
    return round(sb.functional.beta_from_selectivity(selectivity if known else 1 / 3), 3)


def formula_rows(comparison: Comparison) -> list[Row]:
    """Points of percentile ** beta: for the runs with SB, which are named, and for other beta to compare with."""
    own: dict[float, set[str]] = {}
    for label, runs in comparison.by_label.items():
        if runs[0].method == SELECTIVE:
            own.setdefault(beta_of(runs[0]), set()).add(method_and_budget(label)[0])
    at = torch.linspace(0, 1, _POINTS).square()  # most of them where lines with beta < 1 are steep
    return [
        {"beta": " ".join([f"{beta:.3g}", *sorted(own.get(beta, ()))]), "percentile": float(x), "chance": float(chance)}
        for beta in (sorted({*BETAS, *own}) if own else ())
        for x, chance in zip(at, sb.functional.keep_probability(at, beta), strict=True)
    ]


def _formula(comparison: Comparison) -> Figure | None:
    """A line per beta; None if no run has SB."""
    rows = formula_rows(comparison)
    if not rows:
        return None
    betas = list(dict.fromkeys(row["beta"] for row in rows))
    encoding = {
        "x": share_axis("percentile", "percentile of the loss among recent losses"),
        "y": share_axis("chance", "chance of selection"),
        "color": colors("beta", betas, title="beta", titleOrient="left"),
    }
    note = "Lines are percentile ^ beta, by which a share of 1 / (beta + 1) is selected. Those of these runs are named."
    title = "Chance of selection by percentile of the loss"
    return Figure("chance-by-percentile", title, {"mark": "line", "encoding": encoding}, rows, note)


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


def _losses(logs: Mapping[str, Log]) -> Figure | None:
    rows = [row for label, log in logs.items() for row in loss_rows(label, log)]
    if not rows:
        return None
    dashes = {"domain": [_CDF, _CHANCE], "range": [[1, 0], [5, 3]]}
    encoding: Spec = {
        "x": axis("loss", "loss, on a logarithmic scale", scale_type="log", format="~g", tickCount=5),
        "y": share_axis("value", "share or chance"),
        "color": {"field": "epoch", "type": "ordinal", "legend": {"title": "after epoch", "titleOrient": "left"}},
        "strokeDash": {"field": "kind", "scale": dashes, "legend": {"columns": 1, "symbolType": "stroke"}},
    }
    note = "Whole lines move left as losses fall; dashed ones show whom selection prefers."
    return Figure("losses", "Losses, and chances of selection", of_one(_choosy_first(logs), encoding), rows, note)


def _choosy_first(logs: Mapping[str, Log]) -> list[str]:
    """Labels, sorted so that methods with different chances come first. The others have little to show."""
    spreads = {label: float(np.ptp(np.nan_to_num(log.history.probability[-1], nan=1))) for label, log in logs.items()}
    return sorted(logs, key=lambda label: (spreads[label] == 0, logs[label].run.method != SELECTIVE))


def percentiles(losses: Floats) -> Floats:
    """(M,) share of the known losses that are at most this one; NaN where the loss is unknown.

    >>> percentiles(np.array([3.0, 1.0, np.nan, 2.0])).round(2).tolist()
    [1.0, 0.33, nan, 0.67]
    """
    known = np.sort(losses[~np.isnan(losses)])
    shares = np.searchsorted(known, losses, side="right") / max(1, len(known))
    return np.where(np.isnan(losses), np.nan, shares)


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


def _single_examples(logs: Mapping[str, Log]) -> Figure | None:
    chosen: dict[str, Log] = {}
    for label, log in logs.items():
        name, chances = with_would_be_chances(label, log, logs)
        chosen[name] = replace(log, history=replace(log.history, probability=chances))
    rows = [row for label, log in chosen.items() for row in chance_rows(label, log)]
    if is_flat(rows, "chance"):
        return None
    present = {row["run"] for row in rows}
    encoding: Spec = {
        "x": EPOCH,
        "y": share_axis("chance", "chance of selection"),
        "color": colors("example", sorted({row["example"] for row in rows}), title="example", titleOrient="left"),
    }
    spec = of_one([label for label in _choosy_first(chosen) if label in present], encoding, "line", "point")
    note = "Would-be chances are what SB would give by the losses of a run that trains on everything."
    return Figure("examples", "Chance of selection of single examples", spec, rows, note)


def chance_rows(label: str, log: Log) -> list[Row]:
    """Selection probability of five examples, spread over the data, after each epoch that has one."""
    chances = log.history.probability.astype(np.float64)
    return [
        {"run": label, "example": id, "epoch": epoch + 1, "chance": round(float(chances[epoch, id]), 3)}
        for id in sorted({i * (log.num_examples - 1) // 4 for i in range(5)})
        for epoch in range(len(chances))
        if not np.isnan(chances[epoch, id])
    ]
