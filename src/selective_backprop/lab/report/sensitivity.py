"""What settings do: the final error by one setting, and which settings no other beats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from selective_backprop.lab.report.charts import HIDDEN, SHOWN, axis, error_axis, layer, of_methods
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop.lab.report.material import Material
from selective_backprop.lab.report.runs import Run, method_and_budget
from selective_backprop.lab.study.curves import Curve

READING = (
    "Each line joins runs of a method that differ in one setting alone, bars span the seeds, and a flat line is a "
    "setting that need not be tuned."
)
_WORDS = {
    "every": "staleness: scores renewed every n epochs",
    "label_noise": "share of wrong labels",
    "model": "architecture",
    "decay": "learning-rate schedule",
    "lr": "learning rate",
}


def sensitivity(runs: Sequence[Run], material: Material) -> Section:
    """Charts for every setting that runs differ in, and one of all settings together."""
    finished = [run for run in runs if run.finished and not run.is_baseline]
    datasets = dict.fromkeys(str(run.recipe["dataset"]) for run in finished)
    parts: list[Part] = []
    for number, dataset in enumerate(datasets):
        mine = [run for run in finished if str(run.recipe["dataset"]) == dataset]
        for setting, rows in varied_rows(mine).items():
            words = _WORDS.get(setting, setting.replace("_", " ")) or "a setting without a name"
            heading = f"{dataset}: {words}" if len(datasets) > 1 else words[0].upper() + words[1:]
            id = f"sensitivity-{re.sub(r'[^a-z_]+', '-', setting.lower())[:40]}-{number}"  # names files when exported
            while any(part.id == id for part in parts):
                id += "-more"
            parts.append(_by_value(id, heading, words, rows, material))
    return Section("sensitivity", "Sensitivity to settings", READING, [*parts, *_all_settings(finished, material)])


# ---- runs by their settings

_NOT_VARIED = ("seed", "label", "length", "method", "recipe.method", "recipe.selectivity", "recipe.source")


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


@dataclass(frozen=True, eq=False)
class Configuration:
    """Runs of a method with the same settings, by seed."""

    method: str
    settings: dict[str, Any]
    runs: list[Run]

    def words(self, others: Sequence[Configuration], without: str = "") -> str:
        """What sets it apart from other configurations of its method, apart from one setting."""
        alike = [one.settings for one in others if one.method == self.method]
        return ", ".join(
            f"{key}={value}"
            for key, value in self.settings.items()
            if key != without and any(settings.get(key) != value for settings in alike)
        )


def configurations_of(runs: Sequence[Run]) -> list[Configuration]:
    """Finished runs grouped by method and settings."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([method_and_budget(run.label)[0], settings_of(run)], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [Configuration(method_and_budget(mine[0].label)[0], settings_of(mine[0]), mine) for mine in groups.values()]


# ---- one setting


def varied_rows(runs: Sequence[Run]) -> dict[str, list[Row]]:
    """By setting: the final error at each of its values, in lines of configurations that differ in it alone.

    A line is known by its method, and by the other settings in which it differs from lines of that method.
    """
    configurations = configurations_of(runs)
    names = dict.fromkeys(name for one in configurations for name in one.settings)
    names.pop("epochs", None)  # the charts of error against compute show what the length does
    found: dict[str, list[Row]] = {}
    for name in names:
        lines: dict[str, list[Configuration]] = {}
        for one in configurations:
            if name in one.settings:
                others = {key: value for key, value in one.settings.items() if key != name}
                lines.setdefault(json.dumps([one.method, others], sort_keys=True), []).append(one)
        kept = [one for line in lines.values() if len({str(one.settings[name]) for one in line}) > 1 for one in line]
        for one in kept:
            errors = [run.records[-1]["test_error"] for run in one.runs]
            row = {"method": one.method, "budget": one.words(kept, name), "value": one.settings[name]}
            spread = {"error": fmean(errors), "lowest": min(errors), "highest": max(errors), "seeds": len(errors)}
            found.setdefault(name, []).append(row | spread)
    return found


def _by_value(id: str, heading: str, words: str, rows: list[Row], material: Material) -> Figure:
    if all(isinstance(row["value"], (int, float)) for row in rows):
        step = 1 if all(isinstance(row["value"], int) for row in rows) else 0
        x = axis("value", words, zero=False, nice=False, padding=16, format=",.3~f", tickMinStep=step)
    else:
        x = {"field": "value", "type": "nominal", "title": words, "axis": {"labelAngle": 0}}
    y, palette = error_axis(rows, "lowest", "highest"), material.palette
    shared = {"x": x, "y": y, "color": palette.color(rows), "detail": {"field": "budget"}}
    layers = [
        layer("line", shared | {"strokeDash": palette.dash(rows)}),
        layer("rule", shared | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}}, strokeWidth=1.5),
        layer("point", shared | {"shape": palette.shape(rows)}, size=50),
    ]
    return Figure(id, heading, of_methods(layers), rows)


# ---- all settings together

_SUBJECT = ("dataset", "model", "image_size", "label_noise", "validation")
_LISTED = 12
_SHOWN_FROM = 3.0  # times the lowest error: points above are of the first epochs


def _all_settings(runs: Sequence[Run], material: Material) -> list[Part]:
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
            cost = "seconds" if len({run.hardware for run in mine}) == 1 else "compute"
            parts += _settings(settings_rows(configurations, cost), cost, number, about, material)
    return parts


def settings_rows(configurations: Sequence[Configuration], cost: str) -> list[Row]:
    """A row per epoch of each configuration, without those of high errors; "best" where nothing cheaper is better."""
    rows: list[Row] = []
    for one in configurations:
        curve = Curve.mean([run.curve for run in one.runs])
        row: Row = {"method": one.method, "budget": "", "settings": one.words(configurations) or "as in the recipe"}
        spent = curve.seconds if cost == "seconds" else curve.compute
        for epoch, (error, paid) in enumerate(zip(curve.errors, spent, strict=True)):
            rows.append(row | {"epoch": epoch + 1, cost: paid, "error": error})
    lowest = math.inf
    for row in sorted(rows, key=lambda row: (row[cost], row["error"])):
        row["best"] = row["error"] < lowest
        lowest = min(lowest, row["error"])
    return [row for row in rows if row["error"] <= max(_SHOWN_FROM * lowest, lowest + 0.02)]


def _settings(rows: list[Row], cost: str, number: int, about: str, material: Material) -> list[Part]:
    best = sorted((row for row in rows if row["best"]), key=lambda row: row["error"])[:_LISTED]
    cells = [
        [row["method"], row["settings"], str(row["epoch"]), f"{row[cost]:.3g}", f"{row['error']:.2%}"] for row in best
    ]
    place: Spec = {"x": axis(cost, cost, format="~s"), "y": error_axis(rows)}
    points = place | {"color": material.palette.color(rows), "shape": material.palette.shape(rows)}
    points |= {"detail": [{"field": "settings"}, {"field": "epoch"}]}
    layers = [
        layer("line", place, "datum.best", interpolate="step-after", strokeWidth=1, color="#8a94a3"),
        layer("point", points, SHOWN, "!datum.best", opacity=0.3, size=16),
        layer("point", points, SHOWN, "datum.best", size=80),
    ]
    spec: Spec = {"params": [HIDDEN], "height": 340, "layer": layers}
    note = (
        "A point per epoch, those of high errors left out. Large ones, in the table below: nothing cheaper is better."
    )
    title, table = "All settings, and those that no other beats", "Settings that no other beats, the lowest error first"
    return [
        Figure(f"settings-{number}", about + title, spec, rows, note),
        Table(f"best-settings-{number}", about + table, ["method", "settings", "epoch", cost, "error"], cells),
    ]
