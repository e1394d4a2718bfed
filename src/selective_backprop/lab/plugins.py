"""Methods, data sets and models of other packages.

A package offers them by entry points, in its pyproject.toml:

    [project.entry-points."selective_backprop.methods"]
    hardest = "hard_examples.selection:hardest"

The groups are selective_backprop.methods, selective_backprop.datasets and selective_backprop.models. On the command
line the name is package:name, here `--method hard-examples:hardest`. Without entry points, module:function names any
function that Python can import.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

Kind = Literal["methods", "datasets", "models"]
_ONE = {"methods": "method", "datasets": "data set", "models": "model"}


def names_of_plugins(kind: Kind) -> list[str]:
    """Names of all plug-ins of installed packages, as package:name. Nothing is imported."""
    return sorted(_found(kind))


def load_plugin(kind: Kind, name: str) -> Callable[..., Any]:
    """Import the function that package:name or module:function stands for.

    Raises:
        ValueError: if it cannot be imported, or is no function. The message says what to do.
    """
    what = _ONE[kind]
    if (entry := _found(kind).get(_normal(name))) is not None:
        try:
            function = entry.load()
        except Exception as error:  # a plug-in may fail in any way
            raise ValueError(
                f"{what} {name!r} of the package {_package(entry)} cannot be imported from {entry.value!r} "
                f"({type(error).__name__}: {error}): repair or uninstall that package"
            ) from error
        if not callable(function):
            raise ValueError(f"{what} {name!r} must be a function, but {entry.value!r} is {function!r:.50}")
        return function  # type: ignore[no-any-return]
    return _by_path(kind, name)


def _by_path(kind: Kind, name: str) -> Callable[..., Any]:
    what = _ONE[kind]
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), attribute]):
        raise ValueError(f"name your own {what} as 'package.module:function', got {name!r}{_meant(kind, name)}")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ValueError(
            f"cannot import {path!r} for {what} {name!r}: {error}. Install it, or put its folder on PYTHONPATH"
            f"{_meant(kind, name)}"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
        raise ValueError(f"{path!r} has no function {attribute!r} for {what} {name!r}; its functions: {there}")
    return function  # type: ignore[no-any-return]


def _found(kind: Kind) -> dict[str, EntryPoint]:
    return {f"{_package(entry)}:{entry.name}": entry for entry in entry_points(group=f"selective_backprop.{kind}")}


def _package(entry: EntryPoint) -> str:
    return _normal(entry.dist.name) if entry.dist is not None else entry.module.partition(".")[0]


def _normal(name: str) -> str:
    """Spell the package before the colon as package indexes do: My_Package is my-package."""
    package, colon, rest = name.partition(":")
    return re.sub(r"[-_.]+", "-", package).lower() + colon + rest


def _meant(kind: Kind, name: str) -> str:
    near = difflib.get_close_matches(_normal(name), _found(kind), n=1)
    return f". Did you mean {near[0]}?" if near else ""
