"""The names that the `scoring=` of methods takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selective_backprop.model_copies.autocast import AutocastCopy
from selective_backprop.model_copies.folded import FoldedCopy
from selective_backprop.model_copies.int8 import Int8Copy
from selective_backprop.scorers.base import FreshScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.scorers.pipelined import PipelinedScorer
from selective_backprop.scorers.training_pass import TrainingPassScorer
from selective_backprop.types import Measure, Scorer

Scoring = str | Scorer
"""A scorer, or names joined by +, such as "eval", "half" or "int8+pipelined"."""

# Functions, because every scorer needs its own model copy.
_NAMED: dict[str, Callable[[], dict[str, Any]]] = {
    "eval": lambda: {"mode": "eval"},
    "train": lambda: {"mode": "train"},
    "half": lambda: {"scale_factor": 0.5},
    "folded": lambda: {"model_copy": FoldedCopy()},
    "compiled": lambda: {"model_copy": FoldedCopy(compile=True)},
    "int8": lambda: {"model_copy": Int8Copy()},
    "bf16": lambda: {"model_copy": AutocastCopy("bf16")},
    "fp16": lambda: {"model_copy": AutocastCopy("fp16")},
    "pipelined": lambda: {"pipelined": True},
    "reuse": lambda: {"reuse": True},
}


def scorer_from(scoring: Scoring, measure: Measure | None = None) -> Scorer:
    """Make the scorer that `scoring` names. A scorer is returned as it is.

    measure: computes a score other than the loss.

    >>> scorer_from("half+int8").scale_factor, scorer_from("0.875").scale_factor
    (0.5, 0.875)
    """
    # A number is a scale factor; a command line may pass it as a float.
    scorer = _named(str(scoring)) if isinstance(scoring, (str, float)) else scoring
    if not isinstance(scorer, Scorer):
        raise TypeError(f"scoring must be a name or a scorer, got {scoring!r}")
    return scorer if measure is None else scorer.measuring(measure)


def _options(name: str, scoring: str) -> dict[str, Any]:
    if name in _NAMED:
        return _NAMED[name]()
    try:
        return {"scale_factor": float(name)}
    except ValueError:
        raise ValueError(
            f"scoring must be a scorer, or names joined by +. There are {', '.join(_NAMED)} and scale factors such as "
            f"0.875; got {scoring!r}"
        ) from None


def _named(scoring: str) -> FreshScorer:
    options: dict[str, Any] = {}
    for name in scoring.split("+"):
        for key, value in _options(name, scoring).items():
            if key in options:
                raise ValueError(f"scoring={scoring!r} sets the same option twice: leave out one of its names")
            options[key] = value
    if options.pop("reuse", False):
        if options:
            raise ValueError(
                f"scoring='reuse' makes no selection pass, so it cannot be joined with other names, got {scoring!r}"
            )
        return TrainingPassScorer()
    pipelined = options.pop("pipelined", False)
    scorer = ForwardScorer(**options)
    return PipelinedScorer(scorer) if pipelined else scorer
