"""What sections are made of beside the runs themselves, and what could not be read of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from selective_backprop_lab.files.reading import visible
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.figures import Section, Table
from selective_backprop_lab.report.images import LoadData

if TYPE_CHECKING:
    from selective_backprop_lab.report.logs import Log

P = ParamSpec("P")
T = TypeVar("T")
READING = "These files are damaged or no files of a run. What would be drawn from them is missing from this page."


@dataclass
class Material:
    """What every section may use.

    Args:
        palette: colours of the methods.
        load: gives the data of a run; None, or an error of its own: labels and images are left out.
        images: whether to show examples; None: only of data that anybody may pass on.
        scores: files of scores to compare with what selection used.
    """

    palette: Palette
    load: LoadData | None = None
    images: bool | None = None
    scores: Sequence[Path] = ()
    logs: dict[str, dict[str, Log]] = field(default_factory=dict)
    """Ledgers that were read, by workload and label: see `read_logs`."""
    pictured: set[str] = field(default_factory=set)
    """Data sets whose examples are shown already."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What could not be read, and why; each once."""

    def leave_out(self, what: str, reason: object) -> None:
        """Note that something is missing from the page."""
        if (told := (what, visible(str(reason)))) not in self.left_out:  # it may have the path of a file
            self.left_out.append(told)

    def read(self, what: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what read(...) returns, or None and a note if the file cannot be read."""
        try:
            return read(*args, **kwargs)
        except (ValueError, OSError) as error:
            self.leave_out(what, error)
            return None

    def section(self) -> Section:
        """Section that tells what was left out."""
        parts = [Table("left-out", "Left out", ["what", "why"], self.left_out)] if self.left_out else []
        return Section("left-out", "What was left out", READING, parts, overview=True)
