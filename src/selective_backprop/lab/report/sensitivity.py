"""Section 7: what a setting does, from runs that differ only in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from statistics import fmean

from selective_backprop.lab.report.charts import HIDDEN, PERCENT, PLOT_HEIGHT, SHOWN, Palette, axis, label_ends, tooltip
from selective_backprop.lab.report.configurations import (
    Configuration,
    all_settings,
    configurations_of,
    setting_curves,
)
from selective_backprop.lab.report.figures import Figure, Row, Section, Spec
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.report.settings import words_of

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
            parts.append(_chart(f"sensitivity-{id}", setting, lines, heading, palette))
            title = f"{heading}, in the course of training"
            first = "forward passes" if setting == "every" else "compute"
            parts.append(setting_curves(f"curves-{id}", title, setting, lines, first))
    return Section("sensitivity", "Sensitivity to settings", READING, [*parts, *all_settings(finished, palette)])


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
        alike = [other for other in lines if other[0].method == line[0].method]
        others = [{key: value for key, value in one[0].settings.items() if key != setting} for one in alike]
        words = words_of(others)[alike.index(line)]
        names.append(f"{line[0].method}, {words}" if words else line[0].method)
    return names


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


def _chart(
    id: str, setting: str, lines: Mapping[str, Sequence[Configuration]], heading: str, palette: Palette
) -> Figure:
    rows = varied_rows(setting, lines)
    numeric = all(isinstance(row["value"], (int, float)) for row in rows)
    step = 1 if all(isinstance(row["value"], int) for row in rows) else 0
    title = _WORDS.get(setting, setting.replace("_", " "))
    x: Spec = (
        axis("value", title, zero=False, nice=False, padding=16, format=",.3~f", tickMinStep=step)
        if numeric
        else {"field": "value", "type": "nominal", "title": title, "axis": {"labelAngle": 0}}
    )
    shared = {"x": x, "color": palette.color()}
    low, high = min(row["lowest"] for row in rows), max(row["highest"] for row in rows)
    room = 0.06 * (high - low) or 0.01
    y = axis("error", "final test error", format=PERCENT, domain=[max(0.0, low - room), high + room], nice=False)
    tips = tooltip(line="line", value="value", error="error|.2%", compute="compute|.2f", seeds="seeds")
    names, height = _line_names(rows, x, y, palette) if numeric else ([], PLOT_HEIGHT)
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "height": height,
        "layer": [
            {"mark": "line", "encoding": shared | {"y": y, "detail": {"field": "line"}}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": shared | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}},
            },
            {
                "mark": {"type": "point", "size": 50},
                "encoding": shared | {"y": y, "shape": palette.shape(), "tooltip": tips},
            },
            *names,
        ],
    }
    best = min(rows, key=lambda row: float(row["error"]))
    alt = f"Lowest error {best['error']:.2%}, by {best['line']} at {best['value']}."
    return Figure(id, heading, alt, spec, rows)


def _line_names(rows: Sequence[Row], x: Spec, y: Spec, palette: Palette) -> tuple[list[Spec], int]:
    last: dict[str, Row] = {}
    for row in rows:
        if row["line"] not in last or row["value"] > last[row["line"]]["value"]:
            last[row["line"]] = row
    return label_ends(list(last.values()), x, y, palette, name="line")
