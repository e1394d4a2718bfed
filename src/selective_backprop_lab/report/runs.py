"""Folders of runs, read without disturbing a process that works on them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from selective_backprop_lab.files.reading import read_json, visible
from selective_backprop_lab.runs.records import read_records, require_number
from selective_backprop_lab.runs.training import Record
from selective_backprop_lab.study.curves import Curve

_SWEPT = re.compile(r"(?P<name>\S+) (?P<settings>\w{1,40}=\S*(?: \w{1,40}=\S*)*)")


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

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def recipe(self) -> dict[str, Any]:
        recipe: dict[str, Any] = self.config["recipe"]
        return recipe

    @property
    def is_baseline(self) -> bool:
        """Whether the run is a baseline with the budget of another method."""
        return self.label.partition(", ")[2].endswith("compute")

    @property
    def epochs(self) -> int:
        """Number of epochs of the finished run."""
        return int(self.recipe["epochs"])

    @property
    def finished(self) -> bool:
        return len(self.records) >= self.epochs

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
    found = {file for path in paths for file in path.rglob("config.json")}
    files = sorted(file for file in found if (file.parent / "records.jsonl").exists())
    folders = [file.parent for file in files if not any(part.endswith(".networks") for part in file.parts)]
    return [run for folder in folders if (run := _read(folder)).records]


def _read(folder: Path) -> Run:
    config, records, problem = _read_json(folder / "config.json"), [], ""
    beside: dict[str, dict[str, Any]] = {"environment.json": {}, "data.json": {}}
    for name in beside:
        try:
            beside[name] = _read_json(folder / name)
        except (ValueError, OSError) as error:
            problem = str(error)
    try:
        _check_config(config)
        records = printable(read_records(folder))[: int(config["recipe"]["epochs"])]
        if records and not sum(record["compute"] for record in records):
            raise ValueError("its records say that it cost no compute")
    except ValueError as error:
        raise ValueError(f"{folder} does not hold a run ({error}): leave it out, or move it away") from None
    label = str(config.get("label") or config["method"])
    return Run(folder, config, beside["environment.json"], records, label, problem, beside["data.json"])


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


# ---- files are checked when they are read, so that errors do not appear in the middle of a chart


def _check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting that is missing or of a wrong kind."""
    recipe = config.get("recipe")
    if not isinstance(recipe, dict):
        raise ValueError(f"recipe must be settings by name, got {recipe!r:.50}")
    for place, name in ((config, "method"), (recipe, "dataset"), (recipe, "model")):
        if not isinstance(place.get(name), str):
            raise ValueError(f"{name} must be a word, got {place.get(name)!r:.50}")
    for name in ("epochs", "batch_size"):
        require_number(recipe.get(name), name, least=1)
    require_number(config.get("seed"), "seed", least=-math.inf)
    for name in ("label_noise", "validation"):
        require_number(config.get(name, 0), name)
    if recipe.get("image_size") is not None:
        require_number(recipe["image_size"], "image_size")
    for place, name in ((config, "options"), (recipe, "decay")):
        if not isinstance(place.get(name) or {}, dict):
            raise ValueError(f"{name} must be settings by name, got {place[name]!r:.50}")


# ---- labels


def method_and_budget(label: str) -> tuple[str, str]:
    """The method's name, which has a colour, and what else tells the run from others of it, which has its dashes.

    >>> method_and_budget("ledger, 4 epochs"), method_and_budget("sb selectivity=0.2 every=3"), method_and_budget("sb")
    (('ledger', '4 epochs'), ('sb', 'selectivity=0.2 every=3'), ('sb', ''))
    """
    name, _, budget = label.partition(", ")
    if match := _SWEPT.fullmatch(name):
        return match["name"], ", ".join(filter(None, [match["settings"], budget]))
    return name, budget


def names_of(label: str) -> dict[str, str]:
    """The columns by which charts know a run: its label, the method in it, and the budget."""
    name, budget = method_and_budget(label)
    return {"run": label, "method": name, "budget": budget}


def running_means(runs: Sequence[Run], value: Callable[[Record], float]) -> list[float]:
    """Sum of a value from the beginning to each epoch, as a mean over runs of the same length."""
    return [fmean(sums) for sums in zip(*(accumulate(map(value, run.records)) for run in runs), strict=True)]


def forward_passes(record: Record) -> float:
    """Examples sent forward through the network in an epoch, to score them or to train on them."""
    return float(record["scored"] + record["trained"])
