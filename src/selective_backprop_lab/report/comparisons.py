"""Workloads: runs that compete with each other, on the same data, with the same network and the same recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from selective_backprop_lab.files.reading import visible
from selective_backprop_lab.report.runs import Run, method_and_budget
from selective_backprop_lab.study.curves import Curve
from selective_backprop_lab.study.standing import PLAIN, LabelledRuns, Standings, standings


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs by label. Final errors and speed-ups come from finished runs only."""

    id: str
    title: str
    runs: list[Run]

    @cached_property
    def by_label(self) -> dict[str, list[Run]]:
        """Finished runs of each label, by seed; if none is finished, all runs. They are cut to the shortest."""
        groups: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (order_of(run.label), run.seed)):
            groups.setdefault(run.label, []).append(run)
        return {label: _comparable(runs) for label, runs in groups.items()}

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        return {label: runs for label, runs in self.by_label.items() if all(run.finished for run in runs)}

    @cached_property
    def reference(self) -> str | None:
        """Label of the longest plain run. If a sweep has several, the one with the lowest error."""
        found = {
            label: (-max(run.epochs for run in runs), fmean(run.records[-1]["test_error"] for run in runs))
            for label, runs in self.finished.items()
            if runs[0].method == PLAIN and not runs[0].is_baseline
        }
        return min(found, key=found.__getitem__) if found else None

    def mean_curve(self, label: str) -> Curve:
        return Curve.mean([run.curve for run in self.by_label[label]])

    @cached_property
    def same_hardware(self) -> bool:
        """Whether seconds of all runs can be compared."""
        return len({run.hardware for run in self.runs}) == 1

    @cached_property
    def test_examples(self) -> int | None:
        """Size of the test set; None where no run says it."""
        return next((run.test_examples for run in self.runs if run.test_examples), None)

    @cached_property
    def arms(self) -> list[LabelledRuns]:
        """The finished runs of every label."""
        return [
            LabelledRuns.of(label, runs[0].method, [run.curve for run in runs], clock=self.same_hardware)
            for label, runs in self.finished.items()
        ]

    @cached_property
    def standings(self) -> Standings:
        """Every method against plain training and random subsets."""
        return standings(self.arms)

    @cached_property
    def standings_in_seconds(self) -> Standings | None:
        """The same by seconds; None if they cannot be compared."""
        return standings(self.arms, seconds=True) if self.same_hardware else None


def _comparable(runs: list[Run]) -> list[Run]:
    chosen = [run for run in runs if run.finished] or runs
    shortest = min(len(run.records) for run in chosen)
    return [replace(run, records=run.records[:shortest]) for run in chosen]


def order_of(label: str) -> tuple[int, str, float, str]:
    """Traditional first, random ones last, the rest by name and length.

    >>> sorted(["random", "sb, 16 epochs", "sb, 4 epochs", "Traditional"], key=order_of)
    ['Traditional', 'sb, 4 epochs', 'sb, 16 epochs', 'random']
    """
    name, budget = method_and_budget(label)
    place = 0 if name.lower() == "traditional" else 2 if "random" in name.lower() else 1
    length = budget.partition(" ")[0]
    return place, name.lower(), float(length) if length.replace(".", "", 1).isdecimal() else 0.0, label


def compare_runs(runs: Sequence[Run]) -> list[Comparison]:
    """Runs of a comparison differ in the method, its settings, the length and the seed, and in nothing else."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(conditions(run), sort_keys=True), []).append(run)
    parts = [part for group in groups.values() for by_data in _by_data(group) for part in _by_experiment(*by_data)]
    first = [group[0] for group, _ in parts]
    return [
        Comparison(f"c{number}", _title(group[0], first) + more, _by_length(group))
        for number, (group, more) in enumerate(parts)
    ]


def conditions(run: Run) -> dict[str, Any]:
    """What must be equal for two runs to compete."""
    found = {name: value for name, value in run.recipe.items() if name not in _NOT_COMPARED}
    others = {name: run.config.get(name, default) for name, default in _OTHERS.items()}
    return found | others


_NOT_COMPARED = ("epochs", "method", "selectivity", "source")
_OTHERS = {"label_noise": 0, "validation": 0}


def _by_data(runs: list[Run]) -> list[tuple[list[Run], str]]:
    """Runs on other data stay apart, and their titles say which; unless it is the seed that splits the data."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.data_hash, []).append(run)
    seeds = {(run.seed, run.data_hash) for run in runs}
    labels = [{run.label for run in group} for group in groups.values()]
    sizes = {run.test_examples for run in runs}
    if len({seed for seed, _ in seeds}) == len(seeds) and set.intersection(*labels) and len(sizes) == 1:
        return [(runs, "")]
    return [(group, f" (data {data})" if len(groups) > 1 else "") for data, group in groups.items()]


def _by_experiment(runs: list[Run], title: str) -> list[tuple[list[Run], str]]:
    """Keep runs of one name apart: by the folder of their experiment, or else each run by itself."""
    if not _collide(runs):
        return [(runs, title)]
    groups: dict[Path, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.path.parent.parent, []).append(run)
    if any(map(_collide, groups.values())):
        groups = {run.path: [run] for run in runs}
    return [(group, f"{title} ({visible(folder.name)})") for folder, group in groups.items()]


def _collide(runs: Sequence[Run]) -> bool:
    return max(Counter((run.label, run.seed) for run in runs).values()) > 1


def _by_length(runs: Sequence[Run]) -> list[Run]:
    """Runs under one label that are meant for different numbers of epochs are different arms."""
    lengths = {label: {run.epochs for run in runs if run.label == label} for label in {r.label for r in runs}}
    return [
        replace(run, label=f"{run.label}, {run.epochs} epochs") if len(lengths[run.label]) > 1 else run for run in runs
    ]


_WORDS: dict[str, Callable[[Any], str]] = {
    "image_size": lambda size: f"{size} pixels" if size else "full size",
    "decay": lambda decay: f"{(decay or {}).get('kind')} decay",
    "label_noise": lambda noise: f"{noise:.0%} wrong labels",
    "validation": lambda share: "validation split" if share else "test set",
}


def _title(run: Run, others: Sequence[Run]) -> str:
    """Data set and network, and the conditions in which other workloads on them differ."""
    words = [run.recipe["dataset"], run.recipe["model"]]
    rivals = [conditions(other) for other in others if [other.recipe["dataset"], other.recipe["model"]] == words]
    for name, value in conditions(run).items():
        if any(rival.get(name) != value for rival in rivals) or (name in _OTHERS and value):
            words.append(_WORDS[name](value) if name in _WORDS else f"{name.replace('_', ' ')} {value}")
    return ", ".join(words)
