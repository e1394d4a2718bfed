"""What settings do: the final error by one setting, and which settings no other beats."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from selective_backprop_lab.report.charts import HIDDEN, SHOWN, axis, error_axis, layer, of_methods
from selective_backprop_lab.report.comparisons import conditions
from selective_backprop_lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import Run, method_and_budget
from selective_backprop_lab.study.curves import Curve

READING = (
    "Each line joins runs of a method that differ in one setting alone, bars span the seeds, and a flat line is a "
    "setting that need not be tuned."
)
_WORDS = {
    "every": "staleness: scores renewed every n epochs",
    "label_noise": "share of wrong labels",
    "model": "architecture",
    "schedule": "learning-rate schedule",
    "lr": "learning rate",
}


def sensitivity(runs: Sequence[Run], material: Material) -> Section:
    """Charts for every setting that a sweep varied, and one of all settings together."""
    parts: list[Part] = []
    datasets: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished and not run.is_baseline:
            datasets.setdefault(run.recipe["dataset"], []).append(run)
    for number, (dataset, mine) in enumerate(datasets.items()):
        for setting, rows in varied_rows(configurations_of(mine)).items():
            words = _WORDS.get(setting, setting.replace("_", " "))
            heading = f"{dataset}: {words}" if len(datasets) > 1 else words[0].upper() + words[1:]
            parts.append(_by_value(f"sensitivity-{setting}-{number}", heading, words, rows, material))
    return Section("sensitivity", "Sensitivity to settings", READING, [*parts, *_all_settings(datasets, material)])


# ---- runs by their settings


@dataclass(frozen=True, eq=False)
class Configuration:
    """Runs of a method at the same settings of a sweep, by seed."""

    method: str
    settings: dict[str, str]
    runs: list[Run]

    def words(self, without: str = "") -> str:
        """All settings but one."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items() if name != without)


def configurations_of(runs: Sequence[Run]) -> list[Configuration]:
    """Runs grouped by method and by the settings that a sweep wrote into their labels."""
    groups: dict[tuple[str, int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.label, run.epochs, json.dumps(conditions(run), sort_keys=True)), []).append(run)
    return [
        Configuration(method_and_budget(label)[0], dict(_PAIR.findall(method_and_budget(label)[1])), mine)
        for (label, *_), mine in groups.items()
    ]


_PAIR = re.compile(r"(\w+)=(\S*)")


# ---- one setting


def varied_rows(configurations: Sequence[Configuration]) -> dict[str, list[Row]]:
    """By setting: the final error at each of its values, in lines of configurations that differ in it alone.

    A line is known by its method and the other settings.
    """
    names = dict.fromkeys(name for one in configurations for name in one.settings)
    names.pop("epochs", None)  # the charts of error against compute show what the length does
    found: dict[str, list[Row]] = {}
    for name in names:
        lines: dict[tuple[str, str], list[Configuration]] = {}
        for one in configurations:
            if name in one.settings:
                lines.setdefault((one.method, one.words(name)), []).append(one)
        for (method, others), line in lines.items():
            for one in line if len(line) > 1 else ():
                errors = [run.records[-1]["test_error"] for run in one.runs]
                row = {"method": method, "budget": others, "value": one.settings[name], "error": fmean(errors)}
                spread = {"lowest": min(errors), "highest": max(errors), "seeds": len(errors)}
                found.setdefault(name, []).append(row | spread)
    return found


def _by_value(id: str, heading: str, words: str, rows: list[Row], material: Material) -> Figure:
    x: Spec = {"field": "value", "type": "nominal", "title": words, "axis": {"labelAngle": 0}}
    if all(_NUMBER.fullmatch(row["value"]) for row in rows):
        rows = [row | {"value": float(row["value"])} for row in rows]
        x = axis("value", words, zero=False, nice=False, padding=16, format=",.3~f")
    y, palette = error_axis(rows, "lowest", "highest"), material.palette
    shared = {"x": x, "y": y, "color": palette.color(rows), "detail": {"field": "budget"}}
    layers = [
        layer("line", shared | {"strokeDash": palette.dash(rows)}),
        layer("rule", shared | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}}, strokeWidth=1.5),
        layer("point", shared | {"shape": palette.shape(rows)}, size=50),
    ]
    return Figure(id, heading, of_methods(layers), rows)


_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")


# ---- all settings together

_SUBJECT = ("dataset", "model", "image_size", "label_noise", "validation")
_LISTED = 12
_SHOWN_FROM = 3.0  # times the lowest error: points above are of the first epochs


def _all_settings(datasets: Mapping[str, Sequence[Run]], material: Material) -> list[Part]:
    """Every epoch of every configuration, for each set of data and network that has several settings of a method.

    Runs with other learning rates, schedules or lengths are in one chart: the question is which settings to choose.
    """
    subjects: dict[str, list[Run]] = {}
    for run in (run for runs in datasets.values() for run in runs):
        subject = [run.recipe.get(name, run.config.get(name)) for name in _SUBJECT]
        subjects.setdefault(json.dumps(subject), []).append(run)
    parts: list[Part] = []
    for number, mine in enumerate(subjects.values()):
        configurations = configurations_of(mine)
        swept = any(one.settings for one in configurations)
        if swept and len(configurations) > max(2, len({one.method for one in configurations})):
            about = f"{mine[0].recipe['dataset']}, {mine[0].recipe['model']}: " if len(subjects) > 1 else ""
            cost = "seconds" if len({run.hardware for run in mine}) == 1 else "compute"
            parts += _settings(settings_rows(configurations, cost), cost, number, about, material)
    return parts


def settings_rows(configurations: Sequence[Configuration], cost: str) -> list[Row]:
    """A row per epoch of each configuration, without those of high errors; "best" where nothing cheaper is better."""
    rows: list[Row] = []
    for one in configurations:
        curve = Curve.mean([run.curve for run in one.runs])
        row: Row = {"method": one.method, "budget": "", "settings": one.words()}
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
        [f"{row['method']} {row['settings']}", str(row["epoch"]), f"{row[cost]:.3g}", f"{row['error']:.2%}"]
        for row in best
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
        Table(f"best-settings-{number}", about + table, ["settings", "epoch", cost, "error"], cells),
    ]
