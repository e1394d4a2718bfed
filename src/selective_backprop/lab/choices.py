"""Methods by name and selectivity, as the command line gives them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import selective_backprop as sb

METHODS: dict[str, Callable[..., sb.Method]] = {
    "traditional": lambda selectivity, **options: sb.traditional(**options),
    "selective_backprop": sb.selective_backprop,
    "stale_selective_backprop": sb.stale_selective_backprop,
    "predicted_selective_backprop": sb.predicted_selective_backprop,
    "distance_backprop": lambda selectivity, **options: sb.distance_backprop(**options),
    "expected_selective_backprop": sb.expected_selective_backprop,
    # Without a selectivity of its own, the share of the loss decides.
    "ledger_backprop": lambda selectivity, **options: sb.ledger_backprop(**options),
    "infobatch": lambda selectivity, **options: sb.infobatch(**options),
    "kath18": lambda selectivity, **options: sb.kath18(1 / selectivity, **options),
    "composer_backprop": lambda selectivity, **options: sb.composer_backprop(**({"keep": selectivity} | options)),
    "top_k": sb.top_k,
    "random_backprop": sb.random_backprop,
    "repeated_random": sb.repeated_random,
}
"""What can be chosen by name alone: reducible_loss and diet need a model or scores."""


def make_method(name: str, selectivity: float, options: dict[str, Any] | None = None) -> sb.Method:
    """A method by name, at a selectivity where it has one, with its other options.

    >>> make_method("stale_selective_backprop", 0.25, {"every": 2}).scorer.every
    2
    """
    if name not in METHODS:
        nearest = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(METHODS)}"
        raise ValueError(f"there is no method {name!r}: {hint}")
    try:
        return METHODS[name](selectivity, **(options or {}))
    except TypeError as error:
        known = [p for p in inspect.signature(getattr(sb, name)).parameters if p != "selectivity"]
        raise ValueError(f"{name} does not take these options: {error}. It has {', '.join(known)}") from None
