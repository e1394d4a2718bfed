"""Methods, data sets and networks of the user's own, named as package.module:function."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any


def load_function(what: str, name: str, *arguments: str) -> Callable[..., Any]:
    """Import the function that module:function stands for. The import runs the module's code.

    Args:
        what: what the function makes, for messages: "method", "data set" or "model".
        name: module:function.
        arguments: names of the arguments that it will be called with.

    Raises:
        ValueError: if it cannot be imported, is no function or lacks an argument. The message says what to do.
    """
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), attribute]):
        raise ValueError(f"name your own {what} as 'package.module:function', got {name!r}")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise ValueError(
            f"cannot import {path!r} for {what} {name!r}: {error}. Install it, or put its folder on PYTHONPATH"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if inspect.isfunction(value)) or "none"
        raise ValueError(f"{path!r} has no function {attribute!r} for {what} {name!r}; its functions: {there}")
    try:
        if arguments:
            inspect.signature(function).bind(**dict.fromkeys(arguments))
    except TypeError as error:
        raise ValueError(f"{what} {name!r} must take {'= and '.join(arguments)}=: {error}") from error
    return function  # type: ignore[no-any-return]


def import_extra(module: str) -> Any:
    """Import a module of the extra `lab`, or torchvision. If it is missing, the error has the pip line."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = "torchvision" if module.startswith("torchvision") else "'selective-backprop[lab]'"
        raise ImportError(f"{error}: pip install {missing}") from error
