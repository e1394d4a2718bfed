"""All settings of a sweep in one chart: error in the course of training, and which settings no other beats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, choice, tooltip, wrapped
from selective_backprop.lab.report.errors import error_axis
from selective_backprop.lab.report.figures import Figure, Part, Row, Spec, Table
from selective_backprop.lab.report.runs import Run, running_means, split_label
from selective_backprop.lab.report.settings import settings_of, words_of
from selective_backprop.lab.runs.training import Record
from selective_backprop.lab.study.curves import AXES, Curve, pareto_frontier

COSTS = ("forward passes", "compute", "seconds")
AGAINST = {"calculate": "datum[against]", "as": "cost"}
"""Makes a column of the cost that the reader chose."""
_SUBJECT = ("dataset", "model", "image_size", "label_noise", "validation")
_NAMED = 12  # points of the frontier that get their settings written beside them
_SHOWN_FROM = 3.0  # times the lowest error: points above are of the first epochs


@dataclass(frozen=True, eq=False)
class Configuration:
    """Runs of a method with the same settings, by seed."""

    method: str
    settings: dict[str, Any]
    runs: list[Run]

    @property
    def curve(self) -> Curve:
        return Curve.mean([run.curve for run in self.runs])

    def rows(self, **more: Any) -> list[Row]:
        """A row per epoch with what was spent, and the error; means over seeds."""
        curve, passes = self.curve, running_means(self.runs, forward_passes)
        costs = zip(curve.errors, passes, curve.compute, curve.seconds, strict=True)
        return [
            {"method": self.method, "budget": "", "epoch": epoch + 1, "error": error, "seeds": len(self.runs)}
            | dict(zip(COSTS, spent, strict=True))
            | more
            for epoch, (error, *spent) in enumerate(costs)
        ]


def forward_passes(record: Record) -> float:
    """Examples sent forward through the network in an epoch, to score them or to train on them."""
    return float(record["scored"] + record["trained"])


def configurations_of(runs: Sequence[Run]) -> list[Configuration]:
    """Finished runs grouped by method and settings."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([split_label(run.label)[0], settings_of(run)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [Configuration(split_label(mine[0].label)[0], settings_of(mine[0]), mine) for mine in groups.values()]


def against(first: str, runs: Sequence[Run]) -> Spec:
    """A list of costs to choose from. Seconds are left out where runs were made on several machines."""
    offered = [cost for cost in COSTS if cost != "seconds" or len({run.hardware for run in runs}) == 1]
    return choice("against", offered, "against", first)


def setting_curves(
    id: str, title: str, setting: str, lines: dict[str, list[Configuration]], first: str = "compute"
) -> Figure:
    """Error in the course of training, a line for each value of a setting.

    Args:
        id, title: of the figure.
        setting: the one that is varied.
        lines: by what the reader chooses from, configurations that differ in this setting alone.
        first: the cost on the axis until the reader chooses another.
    """
    rows = [
        row
        for line, configurations in lines.items()
        for one in configurations
        for row in one.rows(line=line, value=one.settings[setting])
    ]
    values = list(dict.fromkeys(row["value"] for row in rows))
    numeric = all(isinstance(value, (int, float)) for value in values)
    values = sorted(values) if numeric else values
    encoding: Spec = {
        "x": axis("cost", "cost, as chosen below", format="~s"),
        "y": error_axis(rows),
        "color": {
            "field": "value",
            "type": "ordinal" if numeric else "nominal",
            "scale": {"domain": values, "scheme": "viridis" if numeric else "dark2"},
            "legend": {"title": setting, "titleOrient": "left", "columns": 5},
        },
    }
    costs = {cost: f"{cost}|,.4~g" for cost in COSTS}
    tips = tooltip(line="line", value="value", epoch="epoch", error="error|.2%", **costs)
    runs = [run for configurations in lines.values() for one in configurations for run in one.runs]
    spec: Spec = {
        "params": [choice("chosen", list(lines), "method"), against(first, runs)],
        "transform": [{"filter": "datum.line === chosen"}, AGAINST],
        "encoding": encoding,
        "layer": [{"mark": "line"}, {"mark": "point", "encoding": {"tooltip": tips}}],
    }
    shown = next(iter(lines.values()))
    final = "; ".join(f"{one.settings[setting]} {one.curve.errors[-1]:.2%}" for one in shown)
    return Figure(id, title, f"Final errors of {next(iter(lines))}: {final}.", spec, rows)


def all_settings(runs: Sequence[Run], palette: Palette) -> list[Part]:
    """Every epoch of every configuration, for each set of data and network that has several settings of a method.

    Runs with other learning rates, schedules or lengths are in one chart: the question is which settings to choose.
    """
    subjects: dict[str, list[Run]] = {}
    for run in runs:
        about = [run.recipe.get(name, run.config.get(name)) for name in _SUBJECT]
        subjects.setdefault(json.dumps(about), []).append(run)
    parts: list[Part] = []
    for number, mine in enumerate(subjects.values()):
        configurations = configurations_of(mine)
        methods = [one.method for one in configurations]
        if len(configurations) > len(set(methods)) and len(configurations) > 2:
            parts += _settings_parts(configurations, mine, palette, number, len(subjects) > 1)
    return parts


def _settings_parts(
    configurations: Sequence[Configuration], runs: Sequence[Run], palette: Palette, number: int, several: bool
) -> list[Part]:
    words = ["" for _ in configurations]
    for method in {one.method for one in configurations}:
        places = [i for i, one in enumerate(configurations) if one.method == method]
        for i, text in zip(places, words_of([configurations[i].settings for i in places]), strict=True):
            words[i] = text
    curves = {str(i): one.curve for i, one in enumerate(configurations)}
    best = min(error for curve in curves.values() for error in curve.errors)
    on_it = {by: set(pareto_frontier(curves, by)) for by in AXES}
    rows: list[Row] = []
    for i, (one, text) in enumerate(zip(configurations, words, strict=True)):
        for row in one.rows(
            settings=text or "as in the recipe", name=wrapped(f"{one.method}, {text}" if text else one.method)
        ):
            if row["error"] > max(_SHOWN_FROM * best, best + 0.02):
                continue
            rows.append(row | {f"on {by}": (str(i), row[by], row["error"]) in on_it[by] for by in AXES})
    for by in AXES:  # names beside points on the right half go to their left: there is more room
        middle = (min(row[by] for row in rows) + max(row[by] for row in rows)) / 2
        for row in rows:
            row[f"right {by}"] = row[by] > middle
    named = sorted((row for row in rows if row["on compute"]), key=lambda row: row["error"])[:_NAMED]
    cells = [
        [row["method"], row["settings"], str(row["epoch"]), f"{row['compute']:.3g}", f"{row['error']:.2%}"]
        for row in named
    ]
    x = axis("cost", "cost, as chosen below", format="~s")
    y = error_axis(rows)
    color = {"color": palette.color(), "shape": palette.shape()}
    tips = tooltip(
        method="method",
        settings="settings",
        epoch="epoch",
        error="error|.2%",
        compute="compute|,.4~g",
        seconds="seconds|,.4~g",
    )
    best_ones = [{"filter": "datum['on ' + against]"}]
    chosen = choice(
        "against", [by for by in AXES if by == "compute" or len({run.hardware for run in runs}) == 1], "against"
    )
    beside = {"type": "text", "baseline": "bottom", "fontSize": 10, "lineHeight": 11}
    spec: Spec = {
        "params": [HIDDEN, chosen],
        "height": 340,
        "transform": [AGAINST],
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1, "color": "#8a94a3"},
                "transform": best_ones,
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "point", "opacity": 0.3, "size": 16},
                "transform": [SHOWN, {"filter": "!datum['on ' + against]"}],
                "encoding": {"x": x, "y": y, "tooltip": tips} | color,
            },
            {
                "mark": {"type": "point", "opacity": 1, "size": 80},
                "transform": [SHOWN, *best_ones],
                "encoding": {"x": x, "y": y, "tooltip": tips} | color,
            },
            *(
                {
                    "mark": beside | {"align": align, "dx": shift},
                    "transform": [SHOWN, *best_ones, {"filter": f"{which}datum['right ' + against]"}],
                    "encoding": {"x": x, "y": y, "text": {"field": "name"}},
                }
                for align, shift, which in (("left", 8, "!"), ("right", -8, ""))
            ),
        ],
    }
    run = runs[0]
    about = f"{run.recipe['dataset']}, {run.recipe['model']}: " if several else ""
    title = f"{about}all settings, and those that no other beats"
    alt = "Settings on the frontier of error and compute: " + "; ".join(
        dict.fromkeys(row["name"].replace("\n", " ") for row in named)
    )
    note = (
        "A point per epoch, those of high errors left out. Large points: nothing cheaper is better; their settings are "
        "beside them."
    )
    table_title = f"{about}settings that no other beats, the lowest error first"
    heading = ["method", "settings", "epoch", "compute", "error"]
    return [
        Figure(f"settings-{number}", title[0].upper() + title[1:], f"{alt}.", spec, rows, note=note),
        Table(f"best-settings-{number}", table_title[0].upper() + table_title[1:], heading, cells),
    ]
