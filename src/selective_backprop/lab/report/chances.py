"""Chance of selection by percentile of the loss: SB's formula for several beta, and what it would give plain training.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

import selective_backprop as sb
from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Row, Spec
from selective_backprop.lab.report.logs import Log
from selective_backprop.lab.report.ranking import Floats
from selective_backprop.lab.report.runs import Run, split_label

BETAS = (0.5, 1.0, 2.0, 3.0, 5.0)
_POINTS = 41
SELECTIVE = "selective_backprop"


def beta_of(run: Run) -> float:
    """SB's exponent at the selectivity of this run."""
    selectivity = run.config.get("selectivity", 1 / 3)
    known = isinstance(selectivity, (int, float)) and 0.001 <= selectivity <= 1
    return sb.functional.beta_from_selectivity(selectivity if known else 1 / 3)


def formula_rows(comparison: Comparison) -> list[Row]:
    """Points of percentile ** beta: for each run with SB under its label, and for other beta to compare with."""
    mine = {label: beta_of(runs[0]) for label, runs in comparison.by_label.items() if runs[0].method == SELECTIVE}
    if not mine:
        return []
    # Lines of almost the same beta, and their names, would be on each other.
    others = {"": [beta for beta in BETAS if not any(0.6 < beta / max(own, 1e-9) < 1.7 for own in mine.values())]}
    at = torch.linspace(0, 1, _POINTS).square()  # most of them where lines with beta < 1 are steep
    rows: list[Row] = []
    for label, betas in (others | {label: [beta] for label, beta in mine.items()}).items():
        name, budget = split_label(label)
        for beta in betas:
            row = {"run": label, "method": name, "budget": budget, "beta": round(beta, 3)}
            row["selectivity"] = sb.functional.selectivity_from_beta(beta)
            rows += [
                row | {"percentile": float(percentile), "chance": float(chance)}
                for percentile, chance in zip(at, sb.functional.keep_probability(at, beta), strict=True)
            ]
    return rows


def chance_by_percentile(comparison: Comparison, palette: Palette) -> Figure | None:
    """A line per beta, those of the runs in the colour of their method; None if no run has SB."""
    rows = formula_rows(comparison)
    if not rows:
        return None
    x = axis("percentile", "percentile of the loss among recent losses", format=".0%", domain=[0, 1])
    y = axis("chance", "chance of selection", format=".0%", domain=[0, 1])
    tips = tooltip(
        run="run", beta="beta|.3~g", percentile="percentile|.0%", chance="chance|.1%", selectivity="selectivity|.0%"
    )
    # Where the chance is one half, the lines are furthest apart.
    named = {row["beta"]: {"percentile": 0.5 ** (1 / row["beta"]), "chance": 0.5} for row in rows if row["beta"] > 0}
    labels = [place | {"words": f"beta {beta:.3g}"} for beta, place in named.items()]
    line = {"x": x, "y": y, "detail": {"field": "beta"}, "tooltip": tips}
    spec: Spec = {
        "params": [HIDDEN],
        "layer": [
            {
                "transform": [{"filter": "datum.run === ''"}],
                "mark": {"type": "line", "color": "#8a94a3", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": line,
            },
            {
                "transform": [{"filter": "datum.run !== ''"}, SHOWN],
                "mark": {"type": "line", "strokeWidth": 3},
                "encoding": line | {"color": palette.color()},
            },
            {
                "data": {"values": labels},
                "mark": {"type": "text", "align": "left", "dx": 5, "dy": 6},
                "encoding": {"x": x, "y": y, "text": {"field": "words"}},
            },
        ],
    }
    own = {row["run"]: row for row in rows if row["run"]}
    words = "; ".join(
        f"{run} has beta {row['beta']:.3g}, selecting {row['selectivity']:.0%}" for run, row in own.items()
    )
    alt = f"The larger beta, the fewer examples of low loss are selected. {words}."
    note = "Lines are percentile ^ beta, by which a share of 1 / (beta + 1) is selected. Thick lines: these runs."
    title = "Chance of selection by percentile of the loss"
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
