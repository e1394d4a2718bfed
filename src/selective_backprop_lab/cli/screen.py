"""What commands print: results on stdout, progress and notes on stderr.

In a terminal, lines break at its width. In a pipe or a file there is no width limit: a line stays a line. No name and
no number is ever cut off.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from selective_backprop_lab.files.reading import visible

_NO_LIMIT = 100_000  # columns


@dataclass(frozen=True)
class OutputOptions:
    """Options of every command that prints results."""

    json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the results as one JSON object on stdout.")
    ] = False
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", metavar="", help="Print no progress and no notes on stderr, only results and errors."
        ),
    ] = False


def console(*, stderr: bool = False) -> Console:
    """A terminal of its own width; elsewhere, one without a limit, so that a line stays a line."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _NO_LIMIT
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


class Screen:
    """The two streams of a command."""

    def __init__(self, options: OutputOptions | None = None) -> None:
        self.options = options or OutputOptions()
        self.quiet = self.options.quiet
        """Whether to print no progress."""

    def say(self, text: str = "") -> None:
        """Print a result for people, one paragraph. With --json nothing is printed."""
        if not self.options.json:
            _write(text)

    def table(
        self,
        title: str,
        heading: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        words: int = 1,
        spare: Sequence[str] = (),
    ) -> None:
        """Print a table of results for people. With --json nothing is printed.

        words: number of columns at the left that hold words. The others hold numbers, aligned right.
        spare: columns to leave out where the terminal is too narrow for all, the first one first.
        """
        if self.options.json:
            return
        rows, screen, shown = [list(map(visible, row)) for row in rows], console(), list(heading)
        widths = {name: max(map(len, (name, *cells))) for name, *cells in zip(heading, *rows, strict=True)}
        for name in spare:
            if sum(widths[each] + 2 for each in shown) - 2 > screen.width:
                shown.remove(name)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for place, name in enumerate(heading):
            if name in shown:
                table.add_column(name, justify="left" if place < words else "right", overflow="fold")
        for row in rows:
            table.add_row(*(cell for name, cell in zip(heading, row, strict=True) if name in shown))
        screen.print(visible(title), style="bold")
        screen.print(table)
        screen.print()

    def result(self, content: Mapping[str, Any]) -> None:
        """Print the results for programs, if --json asks for them."""
        if self.options.json:
            print(json.dumps(plain(content), indent=1, allow_nan=False), flush=True)

    def note(self, text: str) -> None:
        """Print progress or advice on stderr. With --quiet nothing is printed."""
        if not self.quiet:
            _write(text, stderr=True)


def warn(text: str) -> None:
    """Print on stderr what a user must know, also with --quiet."""
    _write(text, stderr=True)


def plain(value: Any) -> Any:
    """Make data that JSON knows: of an object its fields by name. A number that is not finite becomes null.

    >>> plain({"a": (1, float("nan")), "b": True, "c": OutputOptions()})
    {'a': [1, None], 'b': True, 'c': {'json': False, 'quiet': False}}
    """
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _write(text: str, *, stderr: bool = False) -> None:
    screen = console(stderr=stderr)
    for paragraph in visible(text).split("\n"):
        indent = " " * (len(paragraph) - len(paragraph.lstrip(" -")))
        # Words longer than a line, such as paths and addresses, stay whole: a terminal can still copy them.
        whole = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
        print("\n".join(textwrap.wrap(paragraph, screen.width, **whole)), file=screen.file, flush=True)  # type: ignore[arg-type]
