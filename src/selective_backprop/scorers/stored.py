"""Scores of an earlier selection pass (Stale-SB)."""

from __future__ import annotations

from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.scorers.base import Wrapping
from selective_backprop.types import Needs, Scorer


class StoredScorer(Wrapping):
    """Scores candidates anew in every n-th epoch. In between, their last scores are used, before loading.

    An example that has no score yet is trained on: a sampler may offer new examples at any time.

    Args:
        fresh: scores loaded candidates.
        every: n. With 1, every epoch has selection passes.
        first_epoch: the epoch of the first selection pass, which is the length of the warm-up.
    """

    needs = Needs(ids=True, selection_pass=True)

    def __init__(self, fresh: Scorer, *, every: int, first_epoch: int = 0) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of epochs >= 1, got {every!r}")
        super().__init__(fresh)
        self.every = every
        self.first_epoch = first_epoch

    def plans(self, epoch: int) -> bool:
        return epoch > self.first_epoch and (epoch - self.first_epoch) % self.every != 0

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return rows.score
