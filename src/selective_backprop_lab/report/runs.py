"""Runs from their folders, and workloads: runs that compete, on the same data with the same network and recipe."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from selective_backprop_lab.files.reading import read_json, visible
from selective_backprop_lab.runs.records import read_records, require_number
from selective_backprop_lab.runs.training import Record
from selective_backprop_lab.study.curves import Curve
from selective_backprop_lab.study.standing import AS, PLAIN, LabelledRuns, Standings, standings

Frame = Any
"""A pandas DataFrame; pandas has no types of its own."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a run's folder says."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    records: list[Record]
    label: str
    """Name of the run in its experiment."""
    problem: str = ""
    """What is wrong with a file that a report can do without."""
    data: dict[str, Any] = field(default_factory=dict)
    """Sizes and hashes of the data."""

    method = property(lambda self: str(self.config["method"]))
    seed = property(lambda self: int(self.config["seed"]))
    recipe = property(lambda self: self.config["recipe"])
    epochs = property(lambda self: int(self.recipe["epochs"]))
    """Number of epochs of the finished run."""
    finished = property(lambda self: len(self.records) >= self.epochs)

    @property
    def is_baseline(self) -> bool:
        """Whether the run is a baseline with the budget of another method."""
        return self.label.partition(", ")[2].endswith("compute") or self.is_matched

    @property
    def is_matched(self) -> bool:
        """Whether it trains on random subsets of another method's sizes."""
        return self.label.startswith(AS)

    @property
    def test_examples(self) -> int | None:
        """Number of examples in the test set, where it is known."""
        test = self.data.get("test")
        count = test.get("examples") if isinstance(test, dict) else None
        return count if isinstance(count, int) else None

    @property
    def data_hash(self) -> str:
        """A short hash of training and test data."""
        return hashlib.sha256(json.dumps(self.data, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def hardware(self) -> tuple[str, ...]:
        """What decides how long a step takes."""
        return tuple(str(self.environment.get(key)) for key in ("machine", "cpu", "cores", "threads", "accelerator"))

    @property
    def machine(self) -> str:
        """Its accelerator, or else its processor and threads."""
        known = {key: str(value)[:80] for key, value in self.environment.items() if value is not None}
        cpu = known.get("cpu") or known.get("machine") or "unknown machine"
        return known.get("accelerator") or (f"{cpu}, {known['threads']} threads" if "threads" in known else cpu)

    @property
    def conditions(self) -> dict[str, Any]:
        """What must be equal for two runs to compete."""
        own = ("epochs", "method", "selectivity", "source")
        others = {name: self.config.get(name, 0) for name in ("label_noise", "validation")}
        return {name: value for name, value in self.recipe.items() if name not in own} | others

    @cached_property
    def curve(self) -> Curve:
        return Curve.of(self.records)


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders and below, sorted by path; those without a finished epoch are left out.

    Networks that `diet score` trained for its scores are no runs of an experiment, and left out too. So are folders
    with a config.json of another program.
    """
    for path in paths:
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is no folder of runs")
    folders = sorted({file.parent for path in paths for file in path.rglob("config.json")})
    folders = [folder for folder in folders if (folder / "records.jsonl").exists()]
    own = [folder for folder in folders if not any(part.endswith(".networks") for part in folder.parts)]
    return [run for folder in own if (run := _read(folder)).records]


def _read(folder: Path) -> Run:
    config, beside, problem = _read_json(folder / "config.json"), [], ""
    for name in ("environment.json", "data.json"):
        try:
            beside.append(_read_json(folder / name))
        except (ValueError, OSError) as error:
            beside, problem = [*beside, {}], str(error)
    try:
        _check_config(config)
        records = printable(read_records(folder))[: int(config["recipe"]["epochs"])]
        if records and not sum(record["compute"] for record in records):
            raise ValueError("its records say that it cost no compute")
    except ValueError as error:
        raise ValueError(f"{folder} does not hold a run ({error}): leave it out, or move it away") from None
    return Run(folder, config, beside[0], records, str(config.get("label") or config["method"]), problem, beside[1])


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file) if file.exists() else {}
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): leave its folder out, or move it away") from None
    return printable(content) if isinstance(content, dict) else {}


def printable(value: Any, most: int = 300) -> Any:
    """Replace control characters in all strings by their escapes, and cut strings that no chart could hold.

    >>> printable({"label": ["a\\x00b", 1]})
    {'label': ['a\\\\x00b', 1]}
    """
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    if not isinstance(value, str):
        return value
    return visible(value if len(value) <= most else f"{value[: most - 1]}…")


def _check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting that is missing or of a wrong kind, before it spoils a chart."""
    recipe = config.get("recipe")
    if not isinstance(recipe, dict):
        raise ValueError(f"recipe must be settings by name, got {recipe!r:.50}")
    for place, name in ((config, "method"), (recipe, "dataset"), (recipe, "model")):
        if not isinstance(place.get(name), str):
            raise ValueError(f"{name} must be a word, got {place.get(name)!r:.50}")
    for place, name in ((config, "options"), (recipe, "decay")):
        if not isinstance(place.get(name) or {}, dict):
            raise ValueError(f"{name} must be settings by name, got {place[name]!r:.50}")
    require_number(config.get("seed"), "seed", least=-math.inf)
    for name in ("epochs", "batch_size"):
        require_number(recipe.get(name), name, least=1)
    for place, name in ((recipe, "image_size"), (config, "label_noise"), (config, "validation")):
        require_number(0 if place.get(name) is None else place[name], name)


# ---- labels

_SWEPT = re.compile(r"(?P<name>\S+) (?P<settings>\w{1,40}=\S*(?: \w{1,40}=\S*)*)")


def method_and_budget(label: str) -> tuple[str, str]:
    """The method's name, which has a colour, and what else tells the run from others of it, which has its dashes.

    >>> method_and_budget("ledger, 4 epochs"), method_and_budget("sb selectivity=0.2 every=3"), method_and_budget("sb")
    (('ledger', '4 epochs'), ('sb', 'selectivity=0.2 every=3'), ('sb', ''))
    """
    name, _, budget = label.partition(", ")
    if match := _SWEPT.fullmatch(name):
        return match["name"], ", ".join(filter(None, [match["settings"], budget]))
    return name, budget


def order_of(label: str) -> tuple[int, str, float, str]:
    """Traditional first, random ones last, the rest by name and length.

    >>> sorted(["random", "sb, 16 epochs", "sb, 4 epochs", "Traditional"], key=order_of)
    ['Traditional', 'sb, 4 epochs', 'sb, 16 epochs', 'random']
    """
    name, budget = method_and_budget(label)
    place = 0 if name.lower() == "traditional" else 2 if "random" in name.lower() else 1
    length = budget.partition(" ")[0]
    return place, name.lower(), float(length) if length.replace(".", "", 1).isdecimal() else 0.0, label


# ---- workloads


@dataclass(frozen=True, eq=False)
class Comparison:
    """A workload: its runs, by label. Final errors and multipliers come from finished runs only."""

    id: str
    title: str
    runs: list[Run]

    @cached_property
    def by_label(self) -> dict[str, list[Run]]:
        """Finished runs of each label, by seed; if none is finished, all runs. They are cut to the shortest."""
        groups: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (order_of(run.label), run.seed)):
            groups.setdefault(run.label, []).append(run)
        for label, runs in groups.items():
            chosen = [run for run in runs if run.finished] or runs
            shortest = min(len(run.records) for run in chosen)
            groups[label] = [replace(run, records=run.records[:shortest]) for run in chosen]
        return groups

    @cached_property
    def finished(self) -> dict[str, list[Run]]:
        return {label: runs for label, runs in self.by_label.items() if all(run.finished for run in runs)}

    @cached_property
    def epochs(self) -> Frame:
        """A row for every epoch of every label, without random subsets of a method's sizes: means over seeds.

        Costs are sums from the beginning of the run. `lowest` and `highest` are the lowest and highest errors.
        """
        every = [run for runs in self.by_label.values() for run in runs]
        groups = table_of([run for run in every if not run.is_matched] or every).groupby(
            ["run", "method", "budget", "epoch"], sort=False
        )
        errors = groups["error"].agg(lowest="min", highest="max", seeds="count")
        return groups.mean(numeric_only=True).drop(columns=["seed", "number"]).join(errors).reset_index()

    @cached_property
    def reference(self) -> str | None:
        """Label of the longest plain run. If a sweep has several, the one with the lowest error."""
        found = {
            label: (-max(run.epochs for run in runs), sum(run.records[-1]["test_error"] for run in runs) / len(runs))
            for label, runs in self.finished.items()
            if runs[0].method == PLAIN and not runs[0].is_baseline
        }
        return min(found, key=found.__getitem__) if found else None

    @cached_property
    def same_hardware(self) -> bool:
        """Whether seconds of all runs can be compared."""
        return len({run.hardware for run in self.runs}) == 1

    @cached_property
    def arms(self) -> list[LabelledRuns]:
        """The finished runs of every label."""
        return [
            LabelledRuns.of(label, runs[0].method, [run.curve for run in runs], clock=self.same_hardware)
            for label, runs in self.finished.items()
        ]

    @cached_property
    def standings(self) -> Standings:
        """Every method against the baselines."""
        return standings(self.arms)


PHASES = {
    "forward (selection)": "selection",
    "forward (training)": "forward",
    "backward": "backward",
    "loading": "loading",
    "other": "other",
}
"""Where the time of training goes, in words, by the names of the records."""


def table_of(runs: Sequence[Run]) -> Frame:
    """The one table of runs: a row for each epoch, with the error after it and all costs from the beginning."""
    rows = []
    for number, run in enumerate(runs):
        method, budget = method_and_budget(run.label)
        own = {"run": run.label, "method": method, "budget": budget, "seed": run.seed, "number": number}
        own |= {"machine": run.machine, "batch": f"{run.recipe['model']}, batches of {run.recipe['batch_size']}"}
        for epoch, record in enumerate(run.records, 1):
            spent = {words: record["seconds"][key] for words, key in PHASES.items()}
            spent |= {name: record[name] for name in ("batches", "compute", "scored", "trained", "offered")}
            spent |= {"seconds": sum(record["seconds"].values()) - record["seconds"]["evaluation"]}
            spent |= {"passes": record["scored"] + record["trained"], "skipped": record["skipped_before_loading"]}
            after = {"error": record["test_error"], "selectivity": record["trained"] / record["offered"]}
            rows.append(own | {"epoch": epoch} | after | spent)
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["machine", "batch", "number"])
    sums = list(spent) if rows else []
    frame[sums] = frame.groupby("number", sort=False)[sums].cumsum().astype(float)
    return frame


def compare_runs(runs: Sequence[Run]) -> list[Comparison]:
    """Runs of a workload differ in the method, its settings, the length and the seed, and in nothing else.

    Runs on other data stay apart, unless it is the seed that splits the data; and so do runs of one name and seed: by
    the folder of their experiment, or else each by itself.
    """
    groups: list[tuple[list[Run], str]] = []
    for mine in _groups(runs, lambda run: json.dumps(run.conditions, sort_keys=True)).values():
        by_data = _groups(mine, lambda run: run.data_hash)
        shared = set.intersection(*({run.label for run in group} for group in by_data.values()))
        of_seed = len({(run.seed, run.data_hash) for run in mine}) == len({run.seed for run in mine})
        if shared and of_seed and len({run.test_examples for run in mine}) == 1:
            by_data = {"": mine}
        for data, group in by_data.items():
            parts = {Path(): group} if _apart(group) else _groups(group, lambda run: run.path.parent.parent)
            parts = parts if all(map(_apart, parts.values())) else _groups(group, lambda run: run.path)
            for folder, part in parts.items():
                words = [f"data {data}"] * (len(by_data) > 1) + [visible(folder.name)] * (folder != Path())
                groups.append((part, f" ({', '.join(words)})" if words else ""))
    first = [group[0] for group, _ in groups]
    return [
        Comparison(f"c{number}", _title(group[0], first) + more, _by_length(group))
        for number, (group, more) in enumerate(groups)
    ]


def _groups(runs: Sequence[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    found: dict[Any, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _apart(runs: Sequence[Run]) -> bool:
    return len({(run.label, run.seed) for run in runs}) == len(runs)


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
    rivals = [other.conditions for other in others if [other.recipe["dataset"], other.recipe["model"]] == words]
    for name, value in run.conditions.items():
        if any(rival.get(name) != value for rival in rivals) or (name in ("label_noise", "validation") and value):
            words.append(_WORDS[name](value) if name in _WORDS else f"{name.replace('_', ' ')} {value}")
    return ", ".join(words)
