"""The options of a method that a command line can give: their names, types, defaults and one line about each.

All of it is read from the functions themselves, from their signatures and docstrings, so that nothing can be missing.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from selective_backprop import methods
from selective_backprop.policies import PercentilePolicy
from selective_backprop.schedules import Schedule

NO_DEFAULT = inspect.Parameter.empty
_PLAIN = (bool, int, float, str)
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "null"}


@dataclass(frozen=True)
class MethodOption:
    """One option of a method."""

    name: str
    kind: Any
    """Its annotation."""
    default: Any
    """NO_DEFAULT if the function has none of its own."""
    help: str
    """What it does, in one sentence."""

    @property
    def default_value(self) -> Any:
        """The default, or None if there is none."""
        return None if self.default is NO_DEFAULT else self.default

    def check(self, value: Any) -> None:
        """Raise a ValueError if the value has a wrong type.

        >>> MethodOption("every", int, 3, "").check("often")
        Traceback (most recent call last):
        ValueError: every must be a whole number, got 'often'
        """
        check_type(self.name, value, self.kind)


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raise a ValueError that says what `name` must be, if the value does not fit the annotation.

    >>> check_type("max_age", None, int | None), check_type("loss_share", 1, float | None)
    (None, None)
    >>> check_type("score", "los", Literal["loss", "gradient_norm"])
    Traceback (most recent call last):
    ValueError: score must be loss or gradient_norm, got 'los': did you mean loss?
    """
    wanted = [part for part in _parts(kind) if part in (*_PLAIN, type(None)) or get_origin(part) is Literal]
    if not wanted or any(_fits(value, part) for part in wanted):
        return
    choices = [str(choice) for part in wanted if get_origin(part) is Literal for choice in get_args(part)]
    words = [*choices, *(_WORDS[part] for part in wanted if part in _WORDS)]
    raise ValueError(f"{name} must be {' or '.join(words)}, got {value!r}{suggestion(str(value), choices)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Name the nearest known word, as the end of a message; "" if none is near.

    >>> suggestion("losshare", ["loss_share", "max_age"])
    ': did you mean loss_share?'
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


@cache
def options_of(function: Callable[..., Any]) -> dict[str, MethodOption]:
    """The options of a method besides its selectivity, those that it shares with others included.

    Options that take tensors or models, such as classes, are for Python only and left out.

    >>> options_of(methods.top_k)["scoring"].help
    'how the selection pass is made: "eval", "train" (with statistics frozen), "bf16" or "fp16" (in lower...'
    """
    hints, found, own = get_type_hints(function, include_extras=True), {}, _arguments(inspect.getdoc(function) or "")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for shared in get_args(hints.get(parameter.name)):
                for name, kind in sorted(get_type_hints(shared, include_extras=True).items()):
                    found[name] = MethodOption(name, kind, _shared_default(name), own.get(name) or _shared_help(name))
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            name = parameter.name
            kind = hints.get(name, Any)
            found[name] = MethodOption(name, kind, parameter.default, own.get(name) or _shared_help(name))
    return {name: option for name, option in found.items() if name != "selectivity" and _can_be_given(option.kind)}


def _can_be_given(kind: Any) -> bool:
    return any(part in (*_PLAIN, Any) or get_origin(part) is Literal for part in _parts(kind))


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):  # which Python counts as a whole number
        return kind is bool
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)


def _arguments(text: str) -> dict[str, str]:
    """The first sentence about each argument, from the part of a docstring that begins with "Args:".

    Those that the text only refers to, such as "as for `other`", are left out.

    >>> _arguments('''Do it.
    ...
    ... Args:
    ...     start, end: the window. As fractions.
    ...     keep: as for `other`.
    ... ''')
    {'start': 'the window', 'end': 'the window'}
    """
    _, _, rest = text.partition("Args:\n")
    block = re.match(r"(?:[ ]{4}.*\n?|\n)*", rest)
    entries = re.split(r"\n(?=\w)", textwrap.dedent(block[0] if block else "").strip())
    found: dict[str, str] = {}
    for entry in entries:
        names, colon, about = entry.partition(": ")
        words = " ".join(about.split())
        if colon and not words.startswith(("as for ", "options of ")):
            found |= dict.fromkeys((name.strip() for name in names.split(",")), _first_sentence(words))
    return found


def _first_sentence(text: str) -> str:
    """The first sentence, as what stands behind a name and a colon."""
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return re.split(r"\.(?= [A-Z`\"])", text)[0].rstrip(".")


@cache
def _shared() -> dict[str, tuple[Any, str]]:
    """Default of each option that methods share, and what it does."""
    found: dict[str, tuple[Any, str]] = {}
    for source in (PercentilePolicy, methods.selective_backprop):
        parameters = inspect.signature(source).parameters
        for name, about in _arguments(inspect.getdoc(source) or "").items():
            if name in parameters:
                found[name] = parameters[name].default, about
    fields, (tree,) = Schedule.__dataclass_fields__, ast.parse(inspect.getsource(Schedule)).body
    assert isinstance(tree, ast.ClassDef)
    for field, docstring in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr) and isinstance(field.target, ast.Name):
            about = ast.literal_eval(docstring.value)
            if field.target.id in fields:
                found[field.target.id] = fields[field.target.id].default, _first_sentence(" ".join(about.split()))
    return found


def _shared_default(name: str) -> Any:
    return _shared().get(name, (NO_DEFAULT, ""))[0]


def _shared_help(name: str) -> str:
    return _shared().get(name, (NO_DEFAULT, ""))[1]


def is_shared(option: MethodOption) -> bool:
    """Whether this option means the same in several methods."""
    return option.name in _shared() and (option.default, option.help) == _shared()[option.name]
