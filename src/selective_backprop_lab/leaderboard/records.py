"""Compact records of runs, one line of JSON each, in a file per workload."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import selective_backprop as sb
from selective_backprop_lab.files.reading import parse_json
from selective_backprop_lab.files.writing import append
from selective_backprop_lab.runs.records import environment
from selective_backprop_lab.study.standing import AS

CHANGED = "+changes"
"""Ends the commit in a record if the code was not as committed."""


@dataclass(frozen=True)
class Cell:
    """A run by what identifies it."""

    arm: str
    setting: str
    """The method with its options, as on the command line."""
    rate: float
    """Factor on the recipe's learning rate."""
    length: int
    """Epochs of the plain training that costs about as much."""
    seed: int
    held_out: bool = False
    """Whether the error is on held-out training examples, to choose a rate, or on the test set."""

    @property
    def source(self) -> Cell | None:
        """The run whose sizes these random subsets have; None for all other arms."""
        if not self.arm.startswith(AS):
            return None
        arm, setting = self.arm.removeprefix(AS), self.setting.removeprefix(AS)
        return dataclasses.replace(self, arm=arm, setting=setting)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    cell: Cell
    error: float
    compute: float
    """Epochs of plain training, a proxy at its share."""
    pflops: float
    """The same in 10^15 floating-point operations."""
    seconds: float
    """Seconds of the run with its one test: of processor time on a CPU, by the clock on a GPU."""
    reference: tuple[float, ...]
    """Seconds of a fixed step of the same network, before and after the run."""
    epochs: tuple[dict[str, int], ...]
    """How many examples each epoch was "offered", and how many it "trained" on."""
    made: dict[str, Any] = dataclasses.field(compare=False)
    """Commit, versions and machine."""


class Store:
    """The file of a workload's records. Lines are only ever added.

    Args:
        file: the file; it need not exist.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[Cell, Outcome] = {}
        for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else [], 1):
            try:
                outcome = _outcome(parse_json(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"line {number} of {file} is no record of a run ({error!r}): delete it") from None
            self.outcomes.setdefault(outcome.cell, outcome)

    def add(self, outcome: Outcome) -> None:
        """Add a record."""
        self.outcomes[outcome.cell] = outcome
        self.file.parent.mkdir(parents=True, exist_ok=True)
        append(self.file, f"{json.dumps(dataclasses.asdict(outcome))}\n".encode())

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells that have no record."""
        return [cell for cell in cells if cell not in self.outcomes]


@functools.cache
def made_with() -> dict[str, Any]:
    """Commit, versions and machine of this process."""
    found = environment()
    made = {name: found[name] for name in ("commit", "torch", "python", "cpu", "date")}
    source = Path(sb.__file__).parents[1]
    if made["commit"]:
        # Records are often part of the same checkout: what counts is whether the code has changed.
        command = ["git", "-C", str(source), "status", "--porcelain", "--", "."]
        changes = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        made["commit"] = made["commit"].removesuffix("-dirty") + (CHANGED if changes else "")
    identity = Path("/etc/machine-id")
    machine = identity.read_text() if identity.exists() else platform.node()
    return made | {"machine": sha256(machine.encode()).hexdigest()[:12]}


def _outcome(content: dict[str, Any]) -> Outcome:
    sequences = {name: tuple(content[name]) for name in ("reference", "epochs")}
    found = Outcome(**content | sequences | {"cell": Cell(**content["cell"])})
    numbers = (found.error, found.compute, found.pflops, found.seconds, *found.reference)
    if not (all(map(math.isfinite, numbers)) and found.error >= 0 and min(numbers[1:]) > 0):
        raise ValueError("an error or a cost that cannot be")
    hash(found.cell)
    return found
