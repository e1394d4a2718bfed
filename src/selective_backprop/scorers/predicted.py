"""Scores that are predicted from each example's past scores, instead of a selection pass.

# N = candidates, H = past scores kept
"""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.ledger import Column, LedgerRows, shift
from selective_backprop.scorers.stored import StoredScorer
from selective_backprop.types import Needs, Scorer


class PredictedScorer(StoredScorer):
    """Scores candidates anew in every n-th epoch. In between, it predicts each score from the example's past scores.

    The prediction is their exponentially weighted average.

    Args:
        fresh, every, first_epoch: as for `StoredScorer`.
        decay: the weight of each past score relative to the next newer one.
        past_scores: H, the number of past scores to predict from.
    """

    def __init__(
        self, fresh: Scorer, *, every: int = 3, first_epoch: int = 0, decay: float = 0.5, past_scores: int = 4
    ) -> None:
        super().__init__(fresh, every=every, first_epoch=first_epoch)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        if past_scores < 1:
            raise ValueError(f"past_scores must be at least 1, got {past_scores}")
        self.decay = decay
        self.past_scores = past_scores
        self.needs = Needs(
            ids=True, selection_pass=True, columns={"earlier_scores": Column("score", shift, width=past_scores - 1)}
        )

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        scores = torch.cat([rows.score[:, None], rows.earlier_scores], dim=1)  # (N, H), the newest first
        weights = self.decay ** torch.arange(self.past_scores, dtype=torch.float64) * ~scores.isnan()
        return ((scores.nan_to_num(0.0) * weights).sum(1) / weights.sum(1)).to(torch.float32)  # NaN without any score
