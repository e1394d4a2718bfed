"""Markdown from docstrings: doctests become code blocks, and legends of letters are no titles."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_LEGEND = re.compile(r"^# (.+)$", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Fence the doctests of a docstring, and show a line such as "# N = candidates" as text.

    >>> print(as_markdown("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    fenced = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    parts = re.split(r"(```pycon\n.*?\n```)", fenced, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LEGEND.sub(r"\1.", part) for part in parts)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
