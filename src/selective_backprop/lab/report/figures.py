"""Parts of a page: sections, figures and tables."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Spec = dict[str, Any]
"""A Vega-Lite specification without data."""


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart.

    Args:
        id: unique in the page; names its files when exported.
        title: what is shown.
        alt: the main numbers in words, for readers who cannot see the chart.
        spec: specification of the chart.
        rows: its data. Figures that share a list share it in the page too.
        comparison: the comparison it belongs to, for readers who filter by comparison.
        note: how to read it, if the section's sentence does not say so.
    """

    id: str
    title: str
    alt: str
    spec: Spec
    rows: list[Row]
    comparison: str = ""
    note: str = ""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of words. The first column is the heading of its row.

    Args:
        note: how to read it.
        exported: heading and cells of its CSV file, if that has more than the page.
    """

    id: str
    title: str
    heading: list[str]
    cells: list[list[str]]
    comparison: str = ""
    note: str = ""
    exported: tuple[list[str], list[list[Any]]] | None = None


@dataclass(frozen=True, eq=False)
class Picture:
    """An example with its image, as a data URI if there is one."""

    id: int
    title: str
    image: str = ""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Pictures in rows, each row under its heading."""

    id: str
    title: str
    rows: dict[str, list[Picture]]
    comparison: str = ""


@dataclass(frozen=True, eq=False)
class Text:
    """A paragraph of findings. The page shows text between ** and ** in bold."""

    words: str
    comparison: str = ""


@dataclass(frozen=True, eq=False)
class Cell:
    """What the matrix says of a method on a workload.

    Args:
        value: the number, or why there is none.
        more: its interval.
        hint: the arm it is of, for who points at it.
        kind: "better", "same", "worse" or "unknown"; "" where there is nothing to judge.
    """

    value: str
    more: str = ""
    kind: str = ""
    hint: str = ""


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the matrix: a workload at an error.

    Args:
        comparison: id of the workload.
        title: title of the workload.
        more: the error, in words.
        target: its name; "" where there is none.
    """

    comparison: str
    title: str
    more: str
    target: str


@dataclass(frozen=True, eq=False)
class Matrix:
    """Methods by workloads.

    Args:
        rows: a cell for each column, by method.
        also: another name for some of the methods.
        legend: words for each kind of cell.
    """

    id: str
    title: str
    columns: list[Column]
    rows: dict[str, list[Cell]]
    legend: dict[str, str]
    also: dict[str, str] = field(default_factory=dict)
    note: str = ""
    comparison: str = ""

    @property
    def exported(self) -> tuple[list[str], list[list[Any]]]:
        """Heading and cells of its CSV file."""
        cells = [
            [f"{cell.value} {cell.more}".strip() + (f" ({cell.hint})" if cell.hint else "") for cell in row]
            for row in self.rows.values()
        ]
        heading = ["method", *(f"{column.title} {column.more}".strip() for column in self.columns)]
        return heading, [[name, *row] for name, row in zip(self.rows, cells, strict=True)]


@dataclass(frozen=True, eq=False)
class Notes:
    """Sentences, each with the id and the title of the workload it is about, or "" and ""; ** makes bold."""

    id: str
    title: str
    items: list[tuple[str, str, str]]
    kind: str = "findings"
    comparison: str = ""


Part = Figure | Table | Gallery | Text | Matrix | Notes


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, a sentence on how to read what is below it, and the parts.

    In an overview the parts of all comparisons stand side by side, at the top of the page. The other sections are cut
    into their comparisons, each of which the reader opens and closes as a whole.
    """

    id: str
    title: str
    reading: str
    parts: list[Part]
    overview: bool = False


def rounded(value: Any) -> Any:
    """Round to six significant digits, more than any chart shows. NaN becomes None, because JSON has no NaN.

    >>> rounded(0.123456789), rounded(float("nan")), rounded("a")
    (0.123457, None, 'a')
    """
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All column names, in the order in which they first appear.

    >>> columns_of([{"a": 1}, {"b": 2, "a": 3}])
    ['a', 'b']
    """
    return list(dict.fromkeys(name for row in rows for name in row))


def as_csv(heading: Sequence[str], cells: Sequence[Sequence[Any]]) -> str:
    """Write a table as CSV. A cell that a spreadsheet would take for a formula gets an apostrophe before it.

    >>> print(as_csv(["id", "name"], [[1, "a, b"], [-2, "=1+1"], [3, "-4.5%"]]), end="")
    id,name
    1,"a, b"
    -2,'=1+1
    3,-4.5%
    """
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerow(map(_no_formula, heading))
    writer.writerows(map(_no_formula, row) for row in cells)
    return lines.getvalue()


def _no_formula(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and cell[:1] in tuple("=+-@\t\r") and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


_NUMBER = re.compile(r"[-+][\d.,]+ ?[%x]?")
