"""Parts of a page: sections, figures and tables; and what all of them may use."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selective_backprop_lab.files.reading import visible
from selective_backprop_lab.report.draw import DASHES, Axis, Line, chart, styles_of
from selective_backprop_lab.report.runs import Frame, Run


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart.

    Args:
        pictures: SVG by what the reader can choose, or one picture under "".
        data: the numbers in it.
        note: how to read it, if the section's sentence does not say so.
        chosen: name of what the reader chooses.
        first: which choice is shown first; default: the first one.
    """

    id: str
    title: str
    pictures: Mapping[str, str]
    data: Frame
    note: str = ""
    chosen: str = ""
    first: str = ""

    @property
    def csv(self) -> str:
        """The numbers, to six digits."""
        return as_csv(list(self.data.columns), self.data.round(6).astype(object).fillna("").values.tolist())


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell that is more than a word.

    Args:
        text: what it says.
        more: said below it in smaller letters.
        kind: its colour, one of the kinds in the table's legend.
        hint: shown to readers who point at it.
        image: shown above the text, as a data URI.
        link: id of the workload that it leads to.
    """

    text: str
    more: str = ""
    kind: str = ""
    hint: str = ""
    image: str = ""
    link: str = ""

    def __str__(self) -> str:
        """What a CSV file has of it."""
        return f"{self.text} {self.more}".strip() + (f" ({self.hint})" if self.hint else "")


@dataclass(frozen=True, eq=False)
class Table:
    """A table. The first column is the heading of its row; `legend` has words for each kind of cell."""

    id: str
    title: str
    heading: Sequence[Any]
    cells: Sequence[Sequence[Any]]
    note: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Notes:
    """Sentences, each with the id and the title of the workload it is about, or "" and ""; ** makes bold."""

    id: str
    title: str
    items: list[tuple[str, str, str]]
    kind: str = "findings"


Part = Figure | Table | Notes


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, a sentence on how to read what is below it, and the parts; of one workload, unless that is ""."""

    id: str
    title: str
    reading: str
    parts: Sequence[Part]
    workload: str = ""
    overview: bool = False
    """Whether it stands at the top of the page."""


@dataclass(eq=False)
class Material:
    """What every section may use.

    Args:
        methods: by the name that the page shows, the method's full name, which has the colour.
        load: gives the data of a run; None, or an error of its own: labels and images are left out.
        images: whether to show examples; None: only of data that anybody may pass on.
        scores: files of scores to compare with what selection used.
    """

    methods: Mapping[str, str]
    load: Callable[[Run], Any] | None = None
    images: bool | None = None
    scores: Sequence[Path] = ()
    pictured: set[str] = field(default_factory=set)
    """Data sets whose examples are shown already."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What could not be read, and why; each once."""

    def leave_out(self, what: str, reason: object) -> None:
        """Note that something is missing from the page."""
        if (told := (what, visible(str(reason)))) not in self.left_out:  # it may have the path of a file
            self.left_out.append(told)

    def read(self, what: str, read: Callable[[Path], Any], path: Path) -> Any:
        """Return what read(path) returns, or None and a note if the file cannot be read."""
        try:
            return read(path)
        except (ValueError, OSError) as error:
            self.leave_out(what, error)
            return None

    def plot(
        self, id: str, title: str, frame: Frame, x: Axis, y: Axis, *, name: str = "method", style: str = "budget",
        choose: str = "", chosen: str = "", first: str = "", note: str = "", colors: str = "kind",
        besides: Sequence[Line] = (), **looks: Any,
    ) -> list[Part]:  # fmt: skip
        """A chart with a line for each name and style in a table: the one way to draw lines. No rows, no chart.

        Args:
            frame: a row per point. `lowest` and `highest` are the ends of bars or shades, `plain` lines are bold,
                and points that are not `best` are pale.
            x, y: axes, which name the columns.
            name: column that colours tell; methods have the page's colours and markers, and can be hidden.
            style: column that dashes tell.
            choose: column of which the reader chooses a value, for a chart of its own.
            chosen, first, note: as for `Figure`.
            colors: kind of colours, unless methods have them.
            besides: lines that belong to every chart.
            looks: for `Line`.
        """
        methods, looks_of = list(self.methods), styles_of(list(self.methods.values()))

        def lines(part: Frame) -> Iterator[Line]:
            names, more = list(dict.fromkeys(part[name])), ["best"] if "best" in part else []
            styles = sorted(dict.fromkeys(part[style]), key=bool)  # the whole line is the method as such
            for (own, kind, *best), rows in part.groupby([name, style, *more], sort=False):
                line = {"name": own if isinstance(own, str) else f"{name} {own}", "style": str(kind)}
                if name == "method":
                    place, color = 0, f"m{methods.index(own)}"
                    line["marker"] = looks_of[methods.index(own)][2]
                else:
                    place, color = names.index(own), f"{colors}{names.index(own) % 5}"
                line |= {"color": f"var(--{color})", "dash": DASHES[(styles.index(kind) + place // 5) % len(DASHES)]}
                ends = {to: list(rows[of]) for to, of in (("low", "lowest"), ("high", "highest")) if of in rows}
                bold = {"opacity": 1 if all(best) else 0.3, "width": 4 if "plain" in rows and all(rows["plain"]) else 2}
                yield Line(list(rows[x.column]), list(rows[y.column]), **line | ends | bold | looks)

        groups = [] if frame.empty else frame.groupby(choose, sort=False) if choose else [("", frame)]
        pictures = {str(key): chart([*besides, *lines(part)], x, y) for key, part in groups}
        names = [one for one in frame if one not in ("method", "budget") or "run" not in frame]
        shown = frame[[one for one in names if set(frame[one]) != {""}]]
        first = first if first in pictures else ""
        return [Figure(id, title, pictures, shown, note, chosen or choose, first)] if pictures else []


def share(column: str, title: str) -> Axis:
    """An axis from 0 to 100%."""
    return Axis(column, title, percent=True, ends=(0.0, 1.0))


def as_csv(heading: Sequence[Any], cells: Sequence[Sequence[Any]]) -> str:
    """Write a table as CSV. A cell that a spreadsheet would take for a formula gets an apostrophe before it.

    >>> print(as_csv(["id", "name"], [[1, "a, b"], [-2, "=1+1"], [3, "-4.5%"]]), end="")
    id,name
    1,"a, b"
    -2,'=1+1
    3,-4.5%
    """
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerows(map(_no_formula, row) for row in (heading, *cells))
    return lines.getvalue()


def _no_formula(cell: Any) -> Any:
    text = str(cell) if isinstance(cell, (str, Cell)) else ""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not _NUMBER.fullmatch(text) else text or cell


_NUMBER = re.compile(r"[-+][\d.,]+ ?[%x]?")
