"""What the docs site needs beyond Markdown: formulas as MathML, the command line's reference, and a check of names.

mkdocs calls these functions by their names. A warning is an error in the strict build.
"""

from __future__ import annotations

import html
import importlib
import logging
import re
import zlib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_logger = logging.getLogger("mkdocs.hooks")
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
_COMMANDS = "<!-- commands -->"
MODULES = (
    "",
    "dynamics",
    "functional",
    "losses",
    "policies",
    "pruning",
    "schedules",
    "scorers",
    "testing",
    "types",
)
"""The modules of the library that users import from. The first is the package itself."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write the reference of the command line where a page asks for it."""
    return markdown.replace(_COMMANDS, commands()) if _COMMANDS in markdown else markdown


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers show without scripts or fonts from elsewhere."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        latex = html.unescape(match["latex"]).strip()
        mathml = convert(latex, display=display)
        if "\\" in mathml:
            _logger.warning("latex2mathml does not know a command of the formula %s", latex)
        # The box scrolls where a formula is wider than a phone.
        return f'<div class="formula">{mathml}</div>' if display == "block" else mathml

    return _FORMULA.sub(formula, content)


def on_post_build(config: Any, **_: Any) -> None:
    """Warn of public names without an entry in the reference, by the inventory that mkdocstrings has written."""
    inventory = Path(config.site_dir, "objects.inv").read_bytes()
    entries = zlib.decompress(inventory.split(b"\n", 4)[4]).decode().splitlines()
    known = {entry.split(" ")[0] for entry in entries}
    for name in public_names():
        if name not in known:
            _logger.warning("%s is public, but no page documents it: add it to docs/reference/ or docs/methods/", name)


def public_names() -> list[str]:
    """All names that a user may import, with the module that they are imported from."""
    names = []
    for module in MODULES:
        path = f"selective_backprop.{module}".rstrip(".")
        members = importlib.import_module(path)
        names += [f"{path}.{name}" for name in exported(members) if name not in (*MODULES, "methods")]
    return names


def exported(module: Any) -> list[str]:
    """The names in a module's __all__, or what it defines itself without an underscore."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", own))


# ---- the command line


def commands() -> str:
    """Markdown for every command with its options, from the code."""
    from typer.main import get_command

    from selective_backprop_lab.cli import app

    return "\n".join(_sections(get_command(app), "selective-backprop"))


def _sections(command: Any, name: str) -> list[str]:
    lines = []
    if name != "selective-backprop":
        lines = [f"## {name}", "", _prose(command.help or ""), ""]
        lines += _table(
            "argument", [(_placeholder(p), _prose(p.help or "")) for p in command.params if _is_argument(p)]
        )
        rows = [(_names(p), _described(p)) for p in command.params if not _is_argument(p) and not p.hidden]
        lines += _table("option", rows)
    for sub in getattr(command, "commands", {}).values():
        if not sub.hidden:
            lines += _sections(sub, f"{name} {sub.name}")
    return lines


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _placeholder(parameter: Any) -> str:
    return f"`{(parameter.metavar or parameter.name).upper()}`"


def _names(parameter: Any) -> str:
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _described(parameter: Any) -> str:
    text, default = _prose(parameter.help or ""), parameter.default
    if parameter.required:
        return f"{text} Required."
    plain = isinstance(default, (int, float, str, Path)) and not isinstance(default, bool)
    return f"{text} Default: `{default}`." if plain and default != "" and "Default" not in text else text


def _prose(text: str) -> str:
    """Help as Markdown: examples in a block of their own, and no line breaks within table cells."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    lines, examples = [], []
    for part in paragraphs:
        if part in ("Example:", "Examples:"):
            continue
        if re.fullmatch(r"`selective-backprop\b[^`]*`", part):
            examples.append(part.strip("`"))
        else:
            lines.append(part)
    if examples:
        lines.append("\n".join(["```text", *examples, "```"]))
    # Brackets in prose would be references; in code they are themselves.
    parts = re.split(r"(`[^`]*`)", "\n\n".join(lines)) if not examples else ["\n\n".join(lines)]
    return "".join(part if part.startswith("`") else part.replace("[", "\\[") for part in parts)


def _table(kind: str, rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    cells = [f"| {name} | {text.replace('|', '&#124;')} |" for name, text in rows]
    return [f"| {kind} | |", "| --- | --- |", *cells, ""]
