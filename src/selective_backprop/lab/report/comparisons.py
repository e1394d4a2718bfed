"""Workloads: runs that compete with each other, on the same data, with the same network and the same recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from selective_backprop.lab.report.runs import Run, method_and_budget
from selective_backprop.lab.study.curves import Curve
from selective_backprop.lab.study.standing import PLAIN, LabelledRuns, Standings, standings


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
    parts: list[tuple[list[Run], str]] = []
    for group in (part for same_conditions in groups.values() for part in _by_data(same_conditions)):
        parts += _by_experiment(group) if _collide(group) else [(group, "")]
    varied = _varied([group[0] for group, _ in parts])
    return [
        Comparison(f"c{number}", _title(group[0], varied) + folder, _by_length(group))
        for number, (group, folder) in enumerate(parts)
    ]


def conditions(run: Run) -> dict[str, Any]:
    """What must be equal for two runs to compete."""
    found = {name: value for name, value in run.recipe.items() if name not in _NOT_COMPARED}
    others = {name: run.config.get(name, default) for name, default in _OTHERS.items()}
    return found | others


_NOT_COMPARED = ("epochs", "method", "selectivity", "source")
_OTHERS = {"label_noise": 0, "validation": 0}


def _by_data(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs on other data stay apart, unless it is the seed that splits the data."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.data_hash, []).append(run)
    seeds = {(run.seed, run.data_hash) for run in runs}
    labels = [{run.label for run in group} for group in groups.values()]
    sizes = {run.test_examples for run in runs}
    if len({seed for seed, _ in seeds}) == len(seeds) and set.intersection(*labels) and len(sizes) == 1:
        return [list(runs)]
    return list(groups.values())


def _collide(runs: Sequence[Run]) -> bool:
    return max(Counter((run.label, run.seed) for run in runs).values()) > 1


def _by_experiment(runs: Sequence[Run]) -> list[tuple[list[Run], str]]:
    """Keep experiments under the same conditions apart: by the folder they are in, or else each run by itself."""
    groups: dict[Path, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.path.parent.parent, []).append(run)
    if any(map(_collide, groups.values())):
        groups = {run.path: [run] for run in runs}
    return [(group, f" ({folder.name})") for folder, group in groups.items()]


def _by_length(runs: Sequence[Run]) -> list[Run]:
    """Runs under one label that are meant for different numbers of epochs are different arms."""
    lengths = {label: {run.epochs for run in runs if run.label == label} for label in {r.label for r in runs}}
    return [
        replace(run, label=f"{run.label}, {run.epochs} epochs") if len(lengths[run.label]) > 1 else run for run in runs
    ]


def _varied(runs: Sequence[Run]) -> dict[tuple[Any, Any], list[str]]:
    """By data set and model: the conditions in which these runs differ."""
    found: dict[tuple[Any, Any], list[str]] = {}
    for subject in dict.fromkeys(map(_subject, runs)):
        settings = [conditions(run) for run in runs if _subject(run) == subject]
        names = dict.fromkeys(name for one in settings for name in one)
        found[subject] = [name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1]
    return found


def _subject(run: Run) -> tuple[Any, Any]:
    return run.recipe["dataset"], run.recipe["model"]


_WORDS: dict[str, Callable[[Any], str]] = {
    "image_size": lambda size: f"{size} pixels" if size else "full size",
    "decay": lambda decay: f"{(decay or {}).get('kind')} decay",
    "label_noise": lambda noise: f"{noise:.0%} wrong labels",
    "validation": lambda share: "validation split" if share else "test set",
}


def _title(run: Run, varied: Mapping[tuple[Any, Any], Sequence[str]]) -> str:
    settings = conditions(run)
    always = [name for name in ("label_noise", "validation") if settings[name]]
    words = [str(part) for part in _subject(run)]
    for name in dict.fromkeys([*varied[_subject(run)], *always]):
        plain = f"{name.replace('_', ' ')} {settings.get(name, 'unknown')}"
        words.append(_WORDS[name](settings[name]) if name in _WORDS and name in settings else plain)
    return ", ".join(words)


def apart(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence for every data set and model whose runs are not all compared with each other."""
    sentences, first = [], [comparison.runs[0] for comparison in comparisons]
    for subject, varied in _varied(first).items():
        runs = [run for run in first if _subject(run) == subject]
        if len(runs) < 2:
            continue
        reasons = [name.replace("_", " ") for name in varied]
        if len({run.data_hash for run in runs}) > 1:
            reasons.append("data")
        words = " and ".join(reasons) or "the experiment they belong to"
        sentences.append(
            f"Runs on {subject[0]} with {subject[1]} that differ in {words} are not compared with each other."
        )
    return sentences
