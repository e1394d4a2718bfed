"""What scorers that run a model on loaded candidates have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from selective_backprop.description import short
from selective_backprop.functional import spearman
from selective_backprop.types import Candidates, Needs, Scorer, Task

CHECK_EVERY = 100
"""Cheap scores are compared with exact ones once in this many candidate batches."""


class FreshScorer(Scorer):
    """A scorer that runs a model on loaded candidates, and knows no scores before they are loaded.

    It can be passed to a method as `scoring=`.
    """

    needs = Needs(selection_pass=True)

    def watch(self, candidates: Candidates, task: Task) -> None:
        """Learn from candidates while selection is off, as in a warm-up. By default nothing is learned."""

    def options_in_method(self) -> list[str]:
        """Show the scorer as the `scoring=` that was passed, unless it is the default."""
        found = short(self)
        return [] if found == "ForwardScorer()" else [f"scoring={found}"]


class FidelityCheck:
    """Compares cheap scores with exact ones, on one candidate batch in a hundred.

    exact: computes exact scores.
    """

    def __init__(self, exact: FreshScorer) -> None:
        self.exact = exact
        self.fidelity = float("nan")
        """Spearman's rank correlation on the last sample; NaN before the first one, or if all scores are equal."""
        self._batches = 0

    def __call__(self, scores: Tensor, candidates: Candidates, task: Task) -> None:
        if self._batches % CHECK_EVERY == 0:
            exact = self.exact.score(candidates, task)
            self.fidelity = round(spearman(scores.detach().float().cpu(), exact.detach().float().cpu()), 6)
        self._batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"fidelity": self.fidelity, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fidelity, self._batches = float(state["fidelity"]), state["batches"]


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
