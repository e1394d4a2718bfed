"""All messages that the package raises, warns of or logs, from its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "selective_backprop"
GAP = "…"
"""Stands for a value in a message."""
_LOGS = {"warning": "warning in the log", "info": "line in the log", "warn": "warning"}
_SHORTEST = 12  # letters of its own; less is only the frame of another message


@dataclass(frozen=True)
class Message:
    """A message with gaps for values, the kind of error, and the file that has it, relative to the package."""

    text: str
    kind: str
    file: str


def messages() -> list[Message]:
    """All messages, by file and line."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (read := _message(node)) is not None:
                text, kind = read
                if len(text.replace(GAP, "")) >= _SHORTEST:
                    found.append(Message(" ".join(text.split()), kind, path.relative_to(SOURCE).as_posix()))
    return list(dict.fromkeys(found))  # what is made and raised in one place was found twice


def _name(function: ast.AST) -> str:
    return str(getattr(function, "id", getattr(function, "attr", "error")))


def _message(node: ast.AST) -> tuple[str, str] | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        return _text(node.exc.args[0]), _name(node.exc.func)
    if isinstance(node, ast.Call) and node.args and _name(node.func).endswith("Error"):
        return _text(node.args[0]), _name(node.func)  # an error may be made in one place and raised in another
    if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):  # an error may make its message itself
        calls = (call for call in ast.walk(node) if isinstance(call, ast.Call) and call.args)
        return next(((_text(call.args[0]), node.name) for call in calls if _name(call.func) == "__init__"), None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = getattr(node.func.value, "id", "")
        if owner in ("_logger", "warnings") and node.func.attr in _LOGS:
            return _text(node.args[0]), _LOGS[node.func.attr]
    return None


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("%s", GAP).replace("%d", GAP)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else GAP for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
    return GAP


TOPICS = {
    "Arguments of methods": ("functional", "method", "methods", "policies", "schedules"),
    "The loader and its data": ("__init__", "loader", "batches", "losses", "ledger", "inference", "progress", "types"),
    "Scoring": ("scorers", "forward_reuse"),
    "Checkpoints, states and files": ("checkpoint", "files", "description"),
    "Several ranks": ("distributed",),
    "Advice and pruning": ("advice", "dynamics", "pruning", "testing"),
    "Integrations": ("integrations", "loggers"),
    "The command line": ("lab",),
}
OTHERS = "Others"


def as_markdown() -> str:
    """A list of all messages, by topic."""
    found, lines = messages(), []
    topic_of = {package: topic for topic, packages in TOPICS.items() for package in packages}
    for topic in (*TOPICS, OTHERS):
        own = {(m.text, m.kind) for m in found if topic_of.get(_package(m), OTHERS) == topic}
        lines += [f"## {topic}", ""] if own else []
        lines += [f"- `{text.replace('`', chr(39))}` ({kind})" for text, kind in sorted(own)]
        lines += [""]
    return "\n".join(lines)


def _package(message: Message) -> str:
    """The package or module of the top level that has the message."""
    return message.file.partition("/")[0].removesuffix(".py")
