"""What scorers that run a model on loaded candidates have in common."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor

from selective_backprop.description import short
from selective_backprop.functional import spearman
from selective_backprop.inference import ScoringMode
from selective_backprop.types import Candidates, Measure, Needs, Scorer, Task


class FreshScorer(Scorer):
    """A scorer that runs a model on loaded candidates, and knows no scores before they are loaded.

    It can be passed to a method as `scoring=`.
    """

    needs = Needs(selection_pass=True)
    mode: ScoringMode = "eval"
    """Whether the model scores in eval mode, or in train mode."""
    measure: Measure | None = None
    """Computes a score other than the loss; None for the loss."""

    def score_copy(self, candidates: Candidates, task: Task) -> Tensor:
        """Return the same scores as `score`, in a background thread, with a copy of the model in eval mode.

        The copy need not be left as it was. Do not touch global random states: the main thread draws from them.
        """
        raise TypeError(f"{type(self).__name__} cannot score in the background: it has no score_copy")

    def measuring(self, measure: Measure) -> Self:
        """Return the same scorer with another score than the loss."""
        raise TypeError(
            f"this method does not score by the loss, and {type(self).__name__} cannot compute another score"
        )

    def options_in_method(self) -> list[str]:
        """Show the scorer as the `scoring=` that was passed, unless it is the default."""
        found = short(self)
        return [] if found == "ForwardScorer()" else [f"scoring={found}"]


class FidelityCheck:
    """Compares cheap scores with exact ones on every n-th candidate batch.

    Args:
        exact: computes exact scores.
        every: n. With 100, the cost is a hundredth of exact selection passes.
    """

    def __init__(self, exact: FreshScorer, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"check_every must be at least 1 candidate batch, got {every}")
        self.exact = exact
        self.every = every
        self.fidelity = float("nan")
        self._batches = 0

    def __call__(self, scores: Tensor, candidates: Candidates, task: Task) -> None:
        if self._batches % self.every == 0:
            self.fidelity = fidelity(scores, self.exact.score(candidates, task))
        self._batches += 1

    def measuring(self, measure: Measure) -> FidelityCheck:
        check = copy.copy(self)
        check.exact = self.exact.measuring(measure)
        return check

    def state_dict(self) -> dict[str, Any]:
        return {"fidelity": self.fidelity, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fidelity, self._batches = state["fidelity"], state["batches"]


def require_one_each(what: str, count: int, num_examples: int | None) -> None:
    """Raise if values by id, of which there are `count`, do not fit a data set of this size.

    >>> require_one_each("the losses are", 3, 4)
    Traceback (most recent call last):
    ValueError: the losses are for 3 ids, but the data set has 4 examples: there must be one entry per example, in ...
    """
    if num_examples is not None and count != num_examples:
        raise ValueError(
            f"{what} for {count} ids, but the data set has {num_examples} examples: there must be one entry per "
            "example, in the order of the data set"
        )


def fidelity(scores: Tensor, exact: Tensor) -> float:
    """Compute Spearman's rank correlation; NaN if one of the two is constant.

    >>> import torch
    >>> fidelity(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 9.0]))
    1.0
    """
    return round(spearman(scores.detach().float().cpu(), exact.detach().float().cpu()), 6)
