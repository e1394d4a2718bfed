"""What commands print: results on stdout, progress and notes on stderr.

In a terminal, lines break at its width. In a pipe or a file there is no width limit: a line stays a line. No name and
no number is ever cut off.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated, Any

import typer

from selective_backprop.lab.runs.torchrun import is_first_process

_GAP = "  "


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


class Screen:
    """The two streams of a command."""

    def __init__(self, options: OutputOptions | None = None) -> None:
        self.options = options or OutputOptions()
        self.quiet = self.options.quiet or not is_first_process()
        """Whether to print no progress."""

    def say(self, text: str = "") -> None:
        """Print a result for people, one paragraph. With --json nothing is printed."""
        if not self.options.json:
            _write(text, sys.stdout)

    def table(self, title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> None:
        """Print a table of results for people. With --json nothing is printed.

        words: number of columns at the left that hold words. The others hold numbers, aligned right.
        """
        if self.options.json:
            return
        print(_bold(title, sys.stdout))
        print("\n".join(layout(heading, rows, width_of(sys.stdout), words)), end="\n\n", flush=True)

    def result(self, content: Mapping[str, Any]) -> None:
        """Print the results for programs, if --json asks for them."""
        if self.options.json:
            print(json.dumps(plain(content), indent=1, allow_nan=False), flush=True)

    def note(self, text: str) -> None:
        """Print progress or advice on stderr. With --quiet nothing is printed."""
        if not self.quiet:
            _write(text, sys.stderr)


def warn(text: str) -> None:
    """Print on stderr what a user must know, also with --quiet."""
    _write(text, sys.stderr)


def plain(value: Any) -> Any:
    """Make data that JSON knows. A number that is not finite becomes null.

    >>> plain({"a": (1, float("nan")), "b": True})
    {'a': [1, None], 'b': True}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def width_of(stream: IO[str]) -> int | None:
    """Columns of the terminal that this stream goes to. None, for no limit, if it goes elsewhere."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def layout(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, words: int = 1) -> list[str]:
    """Lay out a table, the first columns left and the others right, so that every line fits in the width.

    If rows are too wide for one line, the first cell gets a line of its own. If that is too wide, every cell does.

    >>> for line in layout(["method", "error"], [["ledger", "1.25%"], ["sb", "10.50%"]], None):
    ...     print(line)
    method   error
    ------  ------
    ledger   1.25%
    sb      10.50%
    >>> for line in layout(["method", "error", "M"], [["repeated_random", "1.25%", "0.97"]], 16):
    ...     print(line)
    method
      error     M
    -------------
    repeated_random
      1.25%  0.97
    """
    widths = [max(len(row[column]) for row in [heading, *rows]) for column in range(len(heading))]
    if width is None or sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        rule = _GAP.join("-" * size for size in widths)
        return [_row(heading, widths, words), rule, *(_row(row, widths, words) for row in rows)]
    rest = len(_GAP) + sum(widths[1:]) + len(_GAP) * (len(widths) - 2)
    if rest <= width:
        first, *others = (
            [row[0], _GAP + _row(["", *row[1:]], [0, *widths[1:]], words).removeprefix(_GAP)]
            for row in (heading, *rows)
        )
        return [*first, "-" * rest, *(line for pair in others for line in pair)]
    names = max(map(len, heading[1:]))
    return [
        line
        for row in rows
        for line in (
            row[0],
            *(f"{_GAP}{name:<{names}}{_GAP}{cell}" for name, cell in zip(heading[1:], row[1:], strict=True)),
        )
    ]


def _row(cells: Sequence[str], widths: Sequence[int], words: int) -> str:
    padded = [
        f"{cell:<{size}}" if place < words else f"{cell:>{size}}"
        for place, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ]
    return _GAP.join(padded).rstrip()


def _bold(text: str, stream: IO[str]) -> str:
    colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return typer.style(text, bold=True) if colours else text


def _write(text: str, stream: IO[str]) -> None:
    width = width_of(stream)
    for paragraph in text.split("\n"):
        # Words longer than a line, such as paths and addresses, stay whole: a terminal can still copy them.
        lines = [paragraph] if width is None else _wrapped(paragraph, width)
        print("\n".join(lines), file=stream)
    stream.flush()


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (len(text) - len(text.lstrip(" -")))
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
