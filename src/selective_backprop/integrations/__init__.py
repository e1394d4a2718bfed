"""Selective-Backprop in other training frameworks. Each has a module, and only that module imports the framework."""

from __future__ import annotations


def is_missing(error: ImportError, *packages: str) -> bool:
    """Whether one of these packages is not installed. Any other ImportError is a fault inside an installed package.

    >>> is_missing(ModuleNotFoundError("No module named 'lightning'", name="lightning"), "lightning")
    True
    >>> is_missing(ModuleNotFoundError("No module named 'yaml'", name="yaml"), "lightning")
    False
    """
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in packages
