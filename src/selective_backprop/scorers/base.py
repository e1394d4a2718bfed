"""What all scorers share that run a model on loaded candidates."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.functional import rank_percentiles
from selective_backprop.ledger import LedgerRows
from selective_backprop.types import Candidates, Needs, Task

Measure = Callable[[Any, Any], Tensor]
"""Another score than the loss, from (outputs, targets) to one number per example."""


class FreshScorer(Described, ABC):
    """Scores loaded candidates by a model, and knows nothing before they are loaded.

    What a scorer learns while it works (weights of a copy, of a proxy) is in its state_dict.
    """

    needs = Needs(selection_pass=True)
    fidelity = 1.0
    """Rank correlation of the scores with the exact ones on the last sample; NaN before there is one."""
    staleness = 0
    """Training batches given out between the weights that made the last scores and the use of these."""
    score_name = "loss"
    """What errors call a score; "loss" if it is comparable with a training loss."""

    def remembers(self, epoch: int) -> bool:
        return False

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        raise RuntimeError("a forward pass needs loaded candidates")

    @abstractmethod
    def score(self, candidates: Candidates, task: Task) -> Tensor: ...

    def score_copy(self, candidates: Candidates, task: Task) -> Tensor:
        """The same scores by a model that is the caller's own copy, in eval mode; in any thread.

        Nothing has to be restored. Global random states must not be touched, as the main thread draws from them.
        """
        raise TypeError(f"{type(self).__name__} cannot score in the background: it has no score_copy")

    @abstractmethod
    def measuring(self, measure: Measure) -> Self:
        """The same scorer with another score than the loss."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


class Audit:
    """Compares cheap scores with exact ones on every n-th candidate batch.

    Args:
        exact: makes the exact ones.
        every: n. At 100, exact scoring adds a hundredth of a plain selection pass.
    """

    def __init__(self, exact: FreshScorer, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"audit_every must be at least 1 candidate batch, got {every}")
        self.exact = exact
        self.every = every
        self.fidelity = float("nan")
        self._batches = 0

    def __call__(self, scores: Tensor, candidates: Candidates, task: Task) -> None:
        if self._batches % self.every == 0:
            self.fidelity = fidelity(scores, self.exact.score(candidates, task))
        self._batches += 1

    def measuring(self, measure: Measure) -> Audit:
        audit = copy.copy(self)
        audit.exact = self.exact.measuring(measure)
        return audit

    def state_dict(self) -> dict[str, Any]:
        return {"fidelity": self.fidelity, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fidelity, self._batches = state["fidelity"], state["batches"]


def fidelity(scores: Tensor, exact: Tensor) -> float:
    """Spearman's correlation; NaN where one of them does not vary.

    >>> fidelity(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 9.0]))
    1.0
    """
    ranks = torch.stack([rank_percentiles(values.detach().float().cpu()) for values in (scores, exact)])
    if bool((ranks == ranks[:, :1]).all(1).any()):
        return float("nan")
    return round(float(torch.corrcoef(ranks)[0, 1]), 6)
