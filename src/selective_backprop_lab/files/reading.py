"""Reading files from anybody: pipes are not waited for, and JSON must not be nested too deep."""

from __future__ import annotations

import io
import json
import os
import stat
from typing import Any

_DEEPEST = 100  # levels of JSON; files of this package have fewer than ten
_LARGEST_TEXT = 2**28  # bytes of a JSON file; one line per epoch for thousands of epochs takes a hundredth of it


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading. Raises OSError for a pipe, a device or a folder: reading it might never end."""
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "a device")
            raise OSError(f"{os.fspath(path)} is {kind}, not a file with content: remove it, or name another one")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a whole regular file."""
    with open_regular(path) as file:
        return file.read()


def visible(text: str) -> str:
    """Replace what a terminal or a chart would obey, such as control characters, by escapes. Lines stay lines.

    >>> visible("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises ValueError if it is not JSON, is nested too deep, or is far too large."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > _LARGEST_TEXT:
            raise ValueError(f"{size:,} bytes are too many for a JSON file, at most {_LARGEST_TEXT:,} are read")
        return parse_json(file.read())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if the text is not JSON, or nested too deep (Python raises RecursionError).

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 1000 + "]" * 1000)
    Traceback (most recent call last):
    ...
    ValueError: nested more than 100 levels deep
    """
    too_deep = f"nested more than {_DEEPEST} levels deep"
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    # Values that can be parsed may still be nested too deep to be compared or printed.
    level = [found]
    for _ in range(_DEEPEST):
        level = [
            value
            for part in level
            if isinstance(part, (dict, list))
            for value in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return found
    raise ValueError(too_deep)
