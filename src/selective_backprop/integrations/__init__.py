"""Selective-Backprop in other people's training loops: one module for each, which imports its framework only there."""

from __future__ import annotations


def is_missing(error: ImportError, *packages: str) -> bool:
    """Whether one of these packages is not installed. Any other ImportError is a fault inside of one that is.

    >>> is_missing(ModuleNotFoundError("No module named 'lightning'", name="lightning"), "lightning")
    True
    >>> is_missing(ModuleNotFoundError("No module named 'yaml'", name="yaml"), "lightning")
    False
    """
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in packages
