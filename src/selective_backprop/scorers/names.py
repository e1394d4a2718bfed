"""The names that the `scoring=` of methods takes."""

from __future__ import annotations

from collections.abc import Callable

from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.scorers.pipelined import PipelinedScorer
from selective_backprop.types import Measure, Scorer

Scoring = str | Scorer
"""A scorer, or the name of one, such as "eval" or "pipelined"."""

# Functions, because every method needs a scorer of its own.
_NAMED: dict[str, Callable[[Measure | None], Scorer]] = {
    "eval": lambda measure: ForwardScorer(measure=measure),
    "train": lambda measure: ForwardScorer("train", measure=measure),
    "pipelined": lambda measure: PipelinedScorer(ForwardScorer(measure=measure)),
}


def scorer_from(scoring: Scoring, measure: Measure | None = None) -> Scorer:
    """Make the scorer that `scoring` names. A scorer is returned as it is.

    measure: computes a score other than the loss.

    >>> scorer_from("train").mode
    'train'
    """
    if isinstance(scoring, str):
        if scoring not in _NAMED:
            raise ValueError(f"scoring must be a scorer or one of {', '.join(_NAMED)}; got {scoring!r}")
        return _NAMED[scoring](measure)
    if not isinstance(scoring, Scorer):
        raise TypeError(f"scoring must be a name or a scorer, got {scoring!r}")
    if measure is not None:
        raise TypeError(
            f"this method does not score by the loss, so a {type(scoring).__name__} cannot score for it: pass one of "
            f"the names {', '.join(_NAMED)} as scoring="
        )
    return scoring
