"""Writes docs/reference/cli.md: every command with its options, from the code. `make docs` runs it before the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
INTRODUCTION = """# Command line

Every command with its options, from the code. The pages of [the lab](../lab/index.md) explain them with examples.
Results are printed to stdout.

"""


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


if __name__ == "__main__":
    PAGE.write_text(INTRODUCTION + commands())
