"""Parts of a page: sections, figures and tables."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Spec = dict[str, Any]
"""A Vega-Lite specification without data."""


@dataclass(frozen=True, eq=False)
class Figure:
    """A chart.

    Args:
        id: unique in its section; names its files when exported.
        title: what is shown.
        spec: specification of the chart.
        rows: its data, at least one row; all have the same columns. Figures that share a list share it in the page too.
        note: how to read it, if the section's sentence does not say so.
        comparison: the workload it belongs to.
    """

    id: str
    title: str
    spec: Spec
    rows: list[Row]
    note: str = ""
    comparison: str = ""


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


Line = list[str | Cell]
"""A row of a table."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table. The first column is the heading of its row.

    Args:
        note: how to read it.
        legend: words for each kind of cell.
    """

    id: str
    title: str
    heading: Sequence[str | Cell]
    cells: Sequence[Sequence[str | Cell]]
    note: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    comparison: str = ""


@dataclass(frozen=True, eq=False)
class Notes:
    """Sentences, each with the id and the title of the workload it is about, or "" and ""; ** makes bold."""

    id: str
    title: str
    items: list[tuple[str, str, str]]
    kind: str = "findings"
    comparison: str = ""


Part = Figure | Table | Notes


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, a sentence on how to read what is below it, and the parts.

    In an overview the parts of all comparisons stand side by side, at the top of the page. The other sections are cut
    into their comparisons, each of which the reader opens and closes as a whole.
    """

    id: str
    title: str
    reading: str
    parts: Sequence[Part]
    overview: bool = False


def rounded(value: Any) -> Any:
    """Round to six significant digits, more than any chart shows. NaN becomes None, because JSON has no NaN.

    >>> rounded(0.123456789), rounded(float("nan")), rounded("a")
    (0.123457, None, 'a')
    """
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


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
