"""Checks of options by their kind. A value from a command line or a file of settings may still be text."""

from __future__ import annotations

import numbers
from typing import Any


def require_numbers(**values: Any) -> None:
    """Raise if an option is not a number.

    >>> require_numbers(cap="20")
    Traceback (most recent call last):
    ...
    TypeError: cap must be a number, got '20'
    """
    for name, value in values.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, got {value!r:.100}")


def require_flags(**values: Any) -> None:
    """Raise if an option is neither True nor False: the text "False" would count as true.

    >>> require_flags(unbiased="False")
    Traceback (most recent call last):
    ...
    ValueError: unbiased must be true or false, got 'False'
    """
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r:.100}")
