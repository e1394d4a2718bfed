"""Compact records of runs, one line of JSON each, in a file per workload."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selective_backprop_lab.files.reading import parse_json, read_bytes
from selective_backprop_lab.files.writing import append
from selective_backprop_lab.runs.records import environment


@dataclass(frozen=True)
class Cell:
    """A run by what identifies it."""

    arm: str
    setting: str
    """The method with its options, as on the command line."""
    length: int
    seed: int
    held_out: bool
    """Whether the error is on held-out training examples, to choose settings, or on the test set."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    cell: Cell
    error: float
    compute: float
    """Epochs of plain training, a proxy at its share."""
    seconds: float
    """Seconds of the run by the clock, with its one test."""
    cpu_seconds: float
    """The same in processor time."""


class Store:
    """The file of a workload's records. Lines are only ever added.

    Args:
        file: the file; it need not exist.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[Cell, Outcome] = {}
        for number, line in enumerate(read_bytes(file).splitlines() if file.exists() else [], 1):
            try:
                outcome = _outcome(parse_json(line))
            except ValueError as error:
                raise ValueError(f"line {number} of {file} is no record of a run ({error}): delete the line") from None
            self.outcomes.setdefault(outcome.cell, outcome)

    def add(self, outcome: Outcome, **more: Any) -> None:
        """Add a record, with the machine and versions it was made with."""
        self.outcomes[outcome.cell] = outcome
        self.file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(_rounded(asdict(outcome)) | more | {"made": _made_with()})
        append(self.file, f"{line}\n".encode())

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Cells that have no record."""
        return [cell for cell in cells if cell not in self.outcomes]


@functools.cache
def _made_with() -> dict[str, Any]:
    found = environment()
    return {name: found[name] for name in ("commit", "torch", "python", "cpu", "threads", "date")}


_CELL = {"arm": str, "setting": str, "length": int, "seed": int, "held_out": bool}
_NUMBERS = ("error", "compute", "seconds", "cpu_seconds")
_LARGEST = 1e9
"""Largest number in a record. Means and ratios of far larger ones would overflow."""


def _outcome(content: Any) -> Outcome:
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    cell: Any = found.get("cell")
    if not isinstance(cell, dict) or {name: type(value) for name, value in cell.items()} != _CELL:
        raise ValueError(f"its cell is {cell!r:.80}")
    for name in _NUMBERS:
        value: Any = found.get(name)
        if type(value) not in (int, float) or not abs(value) <= _LARGEST:
            raise ValueError(f"{name} is {value!r:.80}, not a number up to {_LARGEST:g}")
    if not (cell["length"] >= 1 and found["compute"] >= 1 / _LARGEST):
        raise ValueError(f"{cell['length']} epochs and a compute of {found['compute']} cannot be")
    return Outcome(Cell(**cell), *(float(found[name]) for name in _NUMBERS))


def _rounded(content: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in content.items()}
