"""Reading small files, and showing what they say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file. Raises ValueError if it is none."""
    return parse_json(Path(path).read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if the text is none, or nested too deep (Python raises RecursionError).

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def visible(text: str) -> str:
    """Replace what a terminal or a chart would obey, such as control characters, by escapes. Lines stay lines.

    >>> visible("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
