"""A Markdown extension that turns formulas into MathML, which browsers show without scripts or fonts from elsewhere.

It reads what `pymdownx.arithmatex` makes of dollar signs, so mkdocs.yml names both.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def _as_mathml(match: re.Match[str]) -> str:
    display = "block" if match["tag"] == "div" else "inline"
    latex = html.unescape(match["latex"]).strip()
    mathml = convert(latex, display=display)
    if "\\" in mathml:
        raise ValueError(f"latex2mathml does not know a command of the formula {latex}")
    # The box scrolls where a formula is wider than a phone.
    return f'<div class="formula">{mathml}</div>' if display == "block" else mathml


class _Formulas(Postprocessor):
    def run(self, text: str) -> str:
        return _FORMULA.sub(_as_mathml, text)


class MathML(Extension):
    """Runs last, on the finished HTML."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (Markdown's own name)
        """Register the extension."""
        md.postprocessors.register(_Formulas(md), "mathml", 0)


def makeExtension(**options: Any) -> MathML:  # noqa: N802 (Markdown's own name)
    """Make the extension, for Markdown."""
    return MathML(**options)
