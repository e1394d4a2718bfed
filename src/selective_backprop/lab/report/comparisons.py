"""Runs that compete with each other: on the same data, with the same model and the same labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from selective_backprop.lab.report.runs import Run, split_label, with_folder
from selective_backprop.lab.study.curves import Axis, Curve, SpeedUp, speed_up


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs by label. Final errors and speed-ups come from finished runs only."""

    id: str
    title: str
    runs: list[Run]

    @cached_property
    def by_label(self) -> dict[str, list[Run]]:
        """Finished runs of each label, by seed. If none is finished, all runs, cut to the shortest."""
        groups: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (order_of(run.label), run.seed)):
            groups.setdefault(run.label, []).append(run)
        return {label: _comparable(runs) for label, runs in groups.items()}

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        return {label: runs for label, runs in self.by_label.items() if all(run.finished for run in runs)}

    @cached_property
    def reference(self) -> str | None:
        """Label of Traditional at full length. If a sweep has several, the one with the lowest error."""
        errors = {
            label: fmean(run.records[-1]["test_error"] for run in runs)
            for label, runs in self.finished.items()
            if runs[0].method == "traditional" and not runs[0].is_baseline
        }
        return min(errors, key=errors.__getitem__) if errors else None

    @cached_property
    def target(self) -> float:
        """1.2x of the reference's final error, the target in all sections but the first."""
        assert self.reference is not None
        return 1.2 * self.mean_curve(self.reference).errors[-1]

    def mean_curve(self, label: str) -> Curve:
        return Curve.mean([run.curve for run in self.by_label[label]])

    def speed_up(self, label: str, factor: float, axis: Axis) -> SpeedUp | None:
        """Speed-up against the reference's runs with the same seeds; None if there are none."""
        assert self.reference is not None
        theirs = {run.seed: run.curve for run in self.finished[self.reference]}
        ours = {run.seed: run.curve for run in self.finished[label]}
        seeds = sorted(theirs.keys() & ours.keys())
        return speed_up([theirs[s] for s in seeds], [ours[s] for s in seeds], factor, axis) if seeds else None


def _comparable(runs: list[Run]) -> list[Run]:
    finished = [run for run in runs if run.finished]
    shortest = min(len(run.records) for run in runs)
    return finished or [replace(run, records=run.records[:shortest]) for run in runs]


def order_of(label: str) -> tuple[int, str, str]:
    """Traditional first, random ones last, the rest by name; baselines after all of them.

    >>> sorted(["random", "sb", "traditional, sb's time", "Traditional"], key=order_of)
    ['Traditional', 'sb', 'random', "traditional, sb's time"]
    """
    name, budget = split_label(label)
    place = 0 if name.lower() == "traditional" else 2 if "random" in name.lower() else 1
    return (place + 3 * bool(budget), name.lower(), label)


def compare_runs(runs: Sequence[Run]) -> list[Comparison]:
    """Group them by what makes errors comparable, and name each group by what sets it apart."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_conditions(run)), []).append(run)
    parts: list[tuple[list[Run], str]] = []
    for group in groups.values():
        parts += _by_experiment(group) if _collide(group) else [(group, "")]
    schedules = {json.dumps(run.recipe.get("decay")) for run in runs}
    sizes = {(run.recipe["dataset"], run.recipe.get("image_size")) for run in runs}
    show_size = len(sizes) > len({dataset for dataset, _ in sizes})
    return [
        Comparison(f"c{number}", _title(group[0], len(schedules) > 1, show_size) + folder, group)
        for number, (group, folder) in enumerate(parts)
    ]


def _conditions(run: Run) -> list[Any]:
    recipe = run.recipe
    schedule = recipe.get("decay")
    own = [recipe["dataset"], recipe.get("image_size"), recipe["model"], schedule]
    return [*own, run.config.get("label_noise", 0), run.config.get("validation", 0)]


def _collide(runs: Sequence[Run]) -> bool:
    return max(Counter((run.label, run.seed) for run in runs).values()) > 1


def _by_experiment(runs: Sequence[Run]) -> list[tuple[list[Run], str]]:
    """Keep two experiments under the same conditions apart. If labels still clash, add the folder's name."""
    experiments: dict[Any, list[Run]] = {}
    for run in runs:
        experiments.setdefault(run.path.parent.parent, []).append(run)
    if len(experiments) > 1 and not any(map(_collide, experiments.values())):
        return [(group, f" ({folder.name})") for folder, group in experiments.items()]
    return [([with_folder(run) for run in runs], "")]


def _title(run: Run, show_schedule: bool, show_size: bool) -> str:
    recipe, noise = run.recipe, run.config.get("label_noise", 0)
    words = [str(recipe["dataset"]), str(recipe["model"])]
    if show_size and recipe.get("image_size"):
        words.append(f"{recipe['image_size']} pixels")
    if show_schedule:
        words.append(f"{(recipe.get('decay') or {}).get('kind')} decay")
    if noise:
        words.append(f"{noise:.0%} wrong labels")
    if run.config.get("validation"):
        words.append("validation split")
    return ", ".join(words)
