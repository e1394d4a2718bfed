"""What settings do: the final error by one setting, curves for its values, and which settings no other beats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from selective_backprop.lab.report.charts import (
    HIDDEN,
    PERCENT,
    PLOT_HEIGHT,
    SHOWN,
    Palette,
    axis,
    choice,
    label_ends,
    layer,
    of_methods,
    of_one,
    tooltip,
)
from selective_backprop.lab.report.errors import error_axis
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop.lab.report.runs import Run, method_and_budget, running_means
from selective_backprop.lab.runs.training import Record
from selective_backprop.lab.study.curves import AXES, Curve, pareto_frontier

READING = (
    "Each line joins runs of a method that differ in one setting alone, bars span the seeds, and a flat line is a "
    "setting that need not be tuned."
)
_WORDS = {
    "every": "staleness: scores renewed every n epochs",
    "label_noise": "share of wrong labels",
    "selectivity": "selectivity",
    "model": "architecture",
    "decay": "learning-rate schedule",
    "lr": "learning rate",
}


def sensitivity(runs: Sequence[Run], palette: Palette) -> Section:
    """Charts for every setting that runs differ in, and one of all settings together."""
    finished = [run for run in runs if run.finished and not run.is_baseline]
    datasets = dict.fromkeys(str(run.recipe["dataset"]) for run in finished)
    parts: list[Figure] = []
    for number, dataset in enumerate(datasets):
        mine = [run for run in finished if str(run.recipe["dataset"]) == dataset]
        for setting, lines in varied_lines(mine).items():
            words = _WORDS.get(setting, setting.replace("_", " ")) or "a setting without a name"
            heading = f"{dataset}: {words}" if len(datasets) > 1 else words[0].upper() + words[1:]
            id = f"{re.sub(r'[^a-z_]+', '-', setting.lower())[:40]}-{number}"  # names files when exported
            while any(part.id == f"curves-{id}" for part in parts):
                id += "-more"
            parts.append(_by_value(f"sensitivity-{id}", setting, lines, heading, palette))
            parts.append(_curves(f"curves-{id}", f"{heading}, in the course of training", setting, lines))
    return Section("sensitivity", "Sensitivity to settings", READING, [*parts, *_all_settings(finished, palette)])


# ---- runs by their settings

_NOT_VARIED = ("seed", "label", "length", "method", "recipe.method", "recipe.selectivity", "recipe.source")
COSTS = ("forward passes", "compute", "seconds")


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by a short name, as plain values.

    Selectivity is that of the method; the ledger's is one of its options.
    """
    config = {key: value for key, value in run.config.items() if key not in ("recipe", "options")}
    flat = config | {f"recipe.{key}": value for key, value in run.recipe.items()}
    plain = {key.rpartition(".")[2]: value for key, value in flat.items() if key not in _NOT_VARIED}
    plain |= run.config.get("options") or {}
    return {key: _plain(key, value) for key, value in plain.items()}


def _plain(key: str, value: Any) -> Any:
    if key == "decay" and isinstance(value, Mapping):
        milestones = value.get("milestones")
        places = [f"{at:.3g}" for at in milestones if isinstance(at, float)] if isinstance(milestones, list) else []
        return " ".join([str(value.get("kind", "")), *places])
    return value if isinstance(value, (int, float, str)) else json.dumps(value)


def words_of(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What sets each of these apart from the others.

    >>> words_of([{"lr": 0.1, "every": 2}, {"lr": 0.1, "every": 3}])
    ['every=2', 'every=3']
    """
    return [
        ", ".join(f"{key}={value}" for key, value in own.items() if any(other.get(key) != value for other in settings))
        for own in settings
    ]


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
        key = json.dumps([method_and_budget(run.label)[0], settings_of(run)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [Configuration(method_and_budget(mine[0].label)[0], settings_of(mine[0]), mine) for mine in groups.values()]


def varied_lines(runs: Sequence[Run]) -> dict[str, dict[str, list[Configuration]]]:
    """By setting: lines of configurations that differ in it alone, by a name that tells lines apart."""
    configurations = configurations_of(runs)
    names = dict.fromkeys(name for one in configurations for name in one.settings)
    names.pop("epochs", None)  # the charts of error against compute show what the length does
    found: dict[str, dict[str, list[Configuration]]] = {}
    for name in names:
        lines: dict[str, list[Configuration]] = {}
        for one in configurations:
            if name in one.settings:
                others = {key: value for key, value in one.settings.items() if key != name}
                lines.setdefault(json.dumps([one.method, others], sort_keys=True), []).append(one)
        kept = [line for line in lines.values() if len({str(one.settings[name]) for one in line}) > 1]
        if kept:
            found[name] = dict(zip(_names(kept, name), kept, strict=True))
    return found


def _names(lines: Sequence[Sequence[Configuration]], setting: str) -> list[str]:
    """Name each line by its method, and by the other settings in which it differs from lines of that method."""
    names = []
    for line in lines:
        of_method = [other for other in lines if other[0].method == line[0].method]
        others = [{key: value for key, value in one[0].settings.items() if key != setting} for one in of_method]
        words = words_of(others)[of_method.index(line)]
        names.append(f"{line[0].method}, {words}" if words else line[0].method)
    return names


# ---- one setting


def varied_rows(setting: str, lines: Mapping[str, Sequence[Configuration]]) -> list[Row]:
    """The final error at each value of a setting, for each line."""
    rows: list[Row] = []
    for line, configurations in lines.items():
        for one in configurations:
            errors = [run.records[-1]["test_error"] for run in one.runs]
            row = {"method": one.method, "budget": "", "line": line, "value": one.settings[setting]}
            spread = {"error": fmean(errors), "lowest": min(errors), "highest": max(errors), "seeds": len(errors)}
            rows.append(row | spread | {"compute": fmean(run.curve.compute[-1] for run in one.runs)})
    return rows


def _by_value(
    id: str, setting: str, lines: Mapping[str, Sequence[Configuration]], heading: str, palette: Palette
) -> Figure:
    rows = varied_rows(setting, lines)
    numeric = all(isinstance(row["value"], (int, float)) for row in rows)
    title = _WORDS.get(setting, setting.replace("_", " "))
    if numeric:
        step = 1 if all(isinstance(row["value"], int) for row in rows) else 0
        x = axis("value", title, zero=False, nice=False, padding=16, format=",.3~f", tickMinStep=step)
    else:
        x = {"field": "value", "type": "nominal", "title": title, "axis": {"labelAngle": 0}}
    low, high = min(row["lowest"] for row in rows), max(row["highest"] for row in rows)
    room = 0.06 * (high - low) or 0.01
    y = axis("error", "final test error", format=PERCENT, domain=[max(0.0, low - room), high + room], nice=False)
    shared = {"x": x, "y": y, "color": palette.color()}
    tips = tooltip(line="line", value="value", error="error|.2%", compute="compute|.2f", seeds="seeds")
    ends = {row["line"]: row for row in sorted(rows, key=lambda row: float(row["value"]))} if numeric else {}
    names, height = label_ends(list(ends.values()), x, y, palette, name="line") if numeric else ([], PLOT_HEIGHT)
    layers = [
        layer("line", shared | {"detail": {"field": "line"}}),
        layer("rule", shared | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}}, strokeWidth=1.5),
        layer("point", shared | {"shape": palette.shape(), "tooltip": tips}, size=50),
    ]
    best = min(rows, key=lambda row: float(row["error"]))
    alt = f"Lowest error {best['error']:.2%}, by {best['line']} at {best['value']}."
    return Figure(id, heading, alt, of_methods([*layers, *names], height=height), rows)


def _against(first: str, costs: Sequence[str], runs: Sequence[Run]) -> Spec:
    """A list of costs to choose from. Seconds are left out where runs were made on several machines."""
    offered = [cost for cost in costs if cost != "seconds" or len({run.hardware for run in runs}) == 1]
    return choice("against", offered, "against", first)


_AGAINST: Spec = {"calculate": "datum[against]", "as": "cost"}
_X: Spec = axis("cost", "cost, as chosen below", format="~s")


def _curves(id: str, title: str, setting: str, lines: Mapping[str, Sequence[Configuration]]) -> Figure:
    """Error in the course of training, a line for each value of a setting; the reader chooses the method."""
    rows = [
        row
        for line, configurations in lines.items()
        for one in configurations
        for row in one.rows(line=line, value=one.settings[setting])
    ]
    values = list(dict.fromkeys(row["value"] for row in rows))
    numeric = all(isinstance(value, (int, float)) for value in values)
    color: Spec = {
        "field": "value",
        "type": "ordinal" if numeric else "nominal",
        "scale": {"domain": sorted(values) if numeric else values, "scheme": "viridis" if numeric else "dark2"},
        "legend": {"title": setting, "titleOrient": "left", "columns": 5},
    }
    costs = {cost: f"{cost}|,.4~g" for cost in COSTS}
    tips = tooltip(line="line", value="value", epoch="epoch", error="error|.2%", **costs)
    runs = [run for configurations in lines.values() for one in configurations for run in one.runs]
    against = _against("forward passes" if setting == "every" else "compute", COSTS, runs)
    layers = [{"mark": "line"}, layer("point", {"tooltip": tips})]
    spec = of_one(list(lines), {"x": _X, "y": error_axis(rows), "color": color}, layers, field="line", params=[against])
    spec["transform"].append(_AGAINST)
    first, shown = next(iter(lines.items()))
    final = "; ".join(f"{one.settings[setting]} {one.curve.errors[-1]:.2%}" for one in shown)
    return Figure(id, title, f"Final errors of {first}: {final}.", spec, rows)


# ---- all settings together

_SUBJECT = ("dataset", "model", "image_size", "label_noise", "validation")
_LISTED = 12
_SHOWN_FROM = 3.0  # times the lowest error: points above are of the first epochs


def _all_settings(runs: Sequence[Run], palette: Palette) -> list[Part]:
    """Every epoch of every configuration, for each set of data and network that has several settings of a method.

    Runs with other learning rates, schedules or lengths are in one chart: the question is which settings to choose.
    """
    subjects: dict[str, list[Run]] = {}
    for run in runs:
        subject = [run.recipe.get(name, run.config.get(name)) for name in _SUBJECT]
        subjects.setdefault(json.dumps(subject), []).append(run)
    parts: list[Part] = []
    for number, mine in enumerate(subjects.values()):
        configurations = configurations_of(mine)
        if len(configurations) > max(2, len({one.method for one in configurations})):
            about = f"{mine[0].recipe['dataset']}, {mine[0].recipe['model']}: " if len(subjects) > 1 else ""
            parts += _settings(configurations, mine, palette, number, about)
    return parts


def _settings(
    configurations: Sequence[Configuration], runs: Sequence[Run], palette: Palette, number: int, about: str
) -> list[Part]:
    curves = {str(i): one.curve for i, one in enumerate(configurations)}
    best = min(error for curve in curves.values() for error in curve.errors)
    on_it = {by: set(pareto_frontier(curves, by)) for by in AXES}
    rows: list[Row] = []
    for i, one in enumerate(configurations):
        of_method = [other for other in configurations if other.method == one.method]
        words = words_of([other.settings for other in of_method])[of_method.index(one)]
        rows += [
            row | {f"on {by}": (str(i), row[by], row["error"]) in on_it[by] for by in AXES}
            for row in one.rows(settings=words or "as in the recipe")
            if row["error"] <= max(_SHOWN_FROM * best, best + 0.02)
        ]
    named = sorted((row for row in rows if row["on compute"]), key=lambda row: row["error"])[:_LISTED]
    cells = [
        [row["method"], row["settings"], str(row["epoch"]), f"{row['compute']:.3g}", f"{row['error']:.2%}"]
        for row in named
    ]
    place = {"x": _X, "y": error_axis(rows)}
    tips = tooltip(method="method", settings="settings", epoch="epoch", error="error|.2%", compute="compute|,.4~g")
    points = place | {"color": palette.color(), "shape": palette.shape(), "tooltip": tips}
    on, off = "datum['on ' + against]", "!datum['on ' + against]"
    layers = [
        layer("line", place, on, interpolate="step-after", strokeWidth=1, color="#8a94a3"),
        layer("point", points, SHOWN, off, opacity=0.3, size=16),
        layer("point", points, SHOWN, on, opacity=1, size=80),
    ]
    against = _against("compute", AXES, runs)
    spec: Spec = {"params": [HIDDEN, against], "height": 340, "transform": [_AGAINST], "layer": layers}
    alt = "Settings on the frontier of error and compute: " + "; ".join(
        dict.fromkeys(f"{row['method']}, {row['settings']}" for row in named)
    )
    note = (
        "A point per epoch, those of high errors left out. Large ones, in the table below: nothing cheaper is better."
    )
    title, table = "All settings, and those that no other beats", "Settings that no other beats, the lowest error first"
    heading = ["method", "settings", "epoch", "compute", "error"]
    return [
        Figure(f"settings-{number}", about + title, f"{alt}.", spec, rows, note=note),
        Table(f"best-settings-{number}", about + table, heading, cells),
    ]
