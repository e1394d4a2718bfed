"""Rules by operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
"""What an operation of the backward pass does with selected rows; NotImplemented where it cannot."""


def operations(*names: str) -> list[Any]:
    """Operations of torch by name, "name" or "name.overload"; those that this version lacks are left out."""
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
