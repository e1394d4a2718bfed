"""The registry of rules: for each operation, how it works on selected rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
"""By operation of the backward pass: a function that applies it to selected rows, or returns NotImplemented."""


def operations(*names: str) -> list[Any]:
    """Find operations of torch by "name" or "name.overload". Names that this version lacks are left out."""
    found = []
    for name in names:
        packet, _, overload = name.partition(".")
        found.append(getattr(getattr(torch.ops.aten, packet, None), overload or "default", None))
    return [operation for operation in found if operation is not None]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations(*names), function))
        return function

    return register
