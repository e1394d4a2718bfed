"""Section 7: what a setting does, from runs that differ only in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from selective_backprop.lab.report.charts import HIDDEN, PERCENT, SHOWN, Palette, axis, tooltip
from selective_backprop.lab.report.figures import Figure, Row, Section, Spec
from selective_backprop.lab.report.runs import Run, split_label

READING = (
    "Each line joins runs of a method that differ in one setting alone, bars span the seeds, and a flat line is a "
    "setting that need not be tuned."
)
_NOT_VARIED = ("seed", "label", "length", "method", "recipe.method", "recipe.selectivity", "recipe.source")
_WORDS = {
    "every": "staleness: scores renewed every n epochs",
    "label_noise": "share of wrong labels",
    "selectivity": "selectivity",
    "model": "architecture",
    "decay": "learning-rate schedule",
    "lr": "learning rate",
}


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by a short name, as plain values.

    Selectivity is that of the method; the ledger's is one of its options.
    """
    config = {key: value for key, value in run.config.items() if key not in ("recipe", "options")}
    recipe = {f"recipe.{key}": value for key, value in run.recipe.items()}
    flat = config | recipe
    plain = {key.rpartition(".")[2]: value for key, value in flat.items() if key not in _NOT_VARIED}
    plain |= run.config.get("options") or {}
    return {key: _plain(key, value) for key, value in plain.items()}


def _plain(key: str, value: Any) -> Any:
    if key == "decay" and isinstance(value, Mapping):
        return value.get("kind", "")
    return value if isinstance(value, (int, float, str)) else json.dumps(value)


def sensitivity(runs: Sequence[Run], palette: Palette) -> Section:
    """A chart for every setting that runs differ in."""
    finished = [run for run in runs if run.finished and not run.is_baseline]
    datasets = dict.fromkeys(str(run.recipe["dataset"]) for run in finished)
    figures = [
        _chart(setting, rows, dataset if len(datasets) > 1 else "", palette, number)
        for number, dataset in enumerate(datasets)
        for setting, rows in varied_rows([r for r in finished if str(r.recipe["dataset"]) == dataset]).items()
    ]
    return Section("sensitivity", "Sensitivity to settings", READING, list(figures))


def varied_rows(runs: Sequence[Run]) -> dict[str, list[Row]]:
    """Rows by setting: final error at each value, for a method with the same other settings."""
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([split_label(run.label)[0], settings_of(run)], sort_keys=True)
        by_settings.setdefault(key, []).append(run)
    groups = [(split_label(group[0].label)[0], settings_of(group[0]), group) for group in by_settings.values()]
    found: dict[str, list[Row]] = {}
    names = dict.fromkeys(name for _, settings, _ in groups for name in settings)
    names.pop("epochs", None)  # the charts of error against compute show what the length does
    for name in names:
        lines: dict[str, list[Row]] = {}
        for method, settings, group in groups:
            if name not in settings:
                continue
            others = {key: value for key, value in settings.items() if key != name}
            errors = [run.records[-1]["test_error"] for run in group]
            row = {"method": method, "budget": "", "value": settings[name], "seeds": len(group)}
            spread = {"error": fmean(errors), "lowest": min(errors), "highest": max(errors)}
            costs = {"compute": fmean(run.curve.compute[-1] for run in group)}
            lines.setdefault(json.dumps([method, others], sort_keys=True), []).append(
                row | spread | costs | {"of": others}
            )
        kept = [rows for rows in lines.values() if len({str(row["value"]) for row in rows}) > 1]
        if kept:
            found[name] = _numbered(kept)
    return found


def _numbered(lines: list[list[Row]]) -> list[Row]:
    """Name each line by the other settings in which it differs from the other lines of its method."""
    rows: list[Row] = []
    for number, line in enumerate(lines):
        alike = [other[0]["of"] for other in lines if other[0]["method"] == line[0]["method"]]
        own = {k: v for k, v in line[0]["of"].items() if any(other.get(k) != v for other in alike)}
        words = ", ".join(f"{key}={value}" for key, value in own.items())
        for row in line:
            kept = {key: value for key, value in row.items() if key != "of"}
            rows.append(kept | {"line": f"{line[0]['method']} {number}", "others": words or "none"})
    return rows


def _chart(setting: str, rows: list[Row], dataset: str, palette: Palette, number: int) -> Figure:
    numeric = all(isinstance(row["value"], (int, float)) for row in rows)
    step = 1 if all(isinstance(row["value"], int) for row in rows) else 0
    title = _WORDS.get(setting, setting.replace("_", " "))
    x: Spec = (
        axis("value", title, zero=False, nice=False, padding=16, format=",.3~f", tickMinStep=step)
        if numeric
        else {"field": "value", "type": "nominal", "title": title}
    )
    if not numeric:
        x["axis"] = {"labelAngle": 0}
    shared = {"x": x, "color": palette.color()}
    y = axis("error", "final test error", format=PERCENT, zero=False)
    tips = tooltip(
        method="method", value="value", error="error|.2%", compute="compute|.2f", seeds="seeds", other_settings="others"
    )
    pale = {"value": 0.9 if len({row["line"] for row in rows}) <= len({row["method"] for row in rows}) else 0.55}
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "layer": [
            {"mark": "line", "encoding": shared | {"y": y, "detail": {"field": "line"}, "opacity": pale}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": shared | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}},
            },
            {
                "mark": {"type": "point", "size": 50},
                "encoding": shared | {"y": y, "shape": palette.shape(), "tooltip": tips},
            },
        ],
    }
    best = min(rows, key=lambda row: float(row["error"]))
    alt = f"Lowest error {best['error']:.2%}, by {best['method']} at {best['value']}."
    heading = f"{dataset}: {title}" if dataset else title[0].upper() + title[1:]
    return Figure(f"sensitivity-{setting}-{number}", heading, alt, spec, rows)
