"""Checks that a method works with a Keras model: it may need losses of a selection pass, of training, or nothing."""

from __future__ import annotations

from typing import Any

from selective_backprop.method import require_method
from selective_backprop.scorers import ForwardScorer
from selective_backprop.scorers.base import Wrapping


def check_method(method: Any) -> None:
    """Raise if parts of the method cannot work with a Keras model."""
    require_method(method)
    scorer, name = method.scorer, method.name
    while isinstance(scorer, Wrapping):
        scorer = scorer.fresh
    if isinstance(scorer, ForwardScorer):
        exact = scorer.mode == "eval" and scorer.scale_factor == 1
        if not exact or scorer.measure is not None:
            what = "scoring='eval'" if not exact else "the loss for a score"
            raise ValueError(f"{name} in Keras works with {what} only: other selection passes are written in torch")
    elif scorer.needs.selection_pass:
        raise ValueError(
            f"{type(scorer).__name__} runs torch modules, so this {name} does not work in Keras: use a method with "
            "scoring='eval', such as selective_backprop, or ledger_backprop"
        )
