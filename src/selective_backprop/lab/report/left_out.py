"""Collect what a report leaves out because a file is damaged, for the page and the command to say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from selective_backprop.lab.report.figures import Section, Table

T = TypeVar("T")
READING = "These files are damaged or no files of a run. What would be drawn from them is missing from this page."


@dataclass
class LeftOut:
    """Collects what could not be read."""

    notes: list[tuple[str, str]] = field(default_factory=list)
    """What it is, and why it was left out; each once."""

    def add(self, what: str, reason: object) -> None:
        note = (what, str(reason))
        if note not in self.notes:
            self.notes.append(note)

    def unless_damaged(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what read() returns, or None and a note if the file cannot be read."""
        try:
            return read()
        except (ValueError, OSError) as error:
            self.add(what, error)
            return None

    def section(self) -> Section:
        cells = [[what, reason] for what, reason in self.notes]
        parts = [Table("left-out", "Left out", ["what", "why"], cells)] if cells else []
        return Section("left-out", "What was left out", READING, list(parts), overview=True)
