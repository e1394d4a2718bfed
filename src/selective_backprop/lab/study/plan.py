"""The plan of a comparison: which runs it will make, so that somebody who watches it knows what is to come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from selective_backprop.files.reading import read_json
from selective_backprop.files.writing import write_whole
from selective_backprop.lab.runs.experiment import Entry

PLAN = "plan.json"
_MOST_EPOCHS = 10**6


@dataclass(frozen=True)
class PlannedRun:
    """A run that will be made, or has been made."""

    label: str
    seed: int
    epochs: int


def write_plan(out: Path, entries: Sequence[Entry]) -> None:
    """Write the labels, seeds and epochs of these runs to plan.json in the folder of the experiment."""
    planned = [PlannedRun(entry.label, entry.settings.seed, entry.settings.epochs) for entry in entries]
    out.mkdir(parents=True, exist_ok=True)
    write_whole({out / PLAN: (json.dumps({"runs": [asdict(run) for run in planned]}, indent=1) + "\n").encode()})


def read_plan(out: Path) -> list[PlannedRun]:
    """Read the runs in plan.json of this folder, in their order. Empty if there is no such file.

    Raises:
        ValueError: with the file and what is wrong in it.
    """
    file = out / PLAN
    if not file.exists():
        return []
    try:
        content = read_json(file)
        runs = content.get("runs") if isinstance(content, dict) else None
        if not isinstance(runs, list):
            raise ValueError("it must hold a list of runs")
        return [_checked(run) for run in runs]
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}): delete it, and the next comparison writes it again") from None


def _checked(run: object) -> PlannedRun:
    if not isinstance(run, dict) or not isinstance(run.get("label"), str):
        raise ValueError(f"a run needs a label, got {run!r:.50}")
    for name, least in (("seed", -(2**63)), ("epochs", 1)):
        value = run.get(name)
        if type(value) is not int or not least <= value < 2**63:
            raise ValueError(
                f"{name} of {run['label']!r:.50} must be a whole number of at least {least}, got {value!r:.50}"
            )
    if run["epochs"] > _MOST_EPOCHS:
        raise ValueError(f"epochs of {run['label']!r:.50} must be at most {_MOST_EPOCHS:,}, got {run['epochs']}")
    return PlannedRun(run["label"], run["seed"], run["epochs"])
