"""Scores that are predicted from each example's past scores, instead of a selection pass.

# N = candidates, H = past scores kept
"""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.ledger import Column, LedgerRows, shift
from selective_backprop.scorers.wrapping import Wrapping
from selective_backprop.types import Needs, Scorer


class PredictedScorer(Wrapping):
    """Scores candidates anew in every n-th epoch. In between, it predicts each score from the example's past scores.

    The prediction is their exponentially weighted average.

    Args:
        fresh: scores loaded candidates.
        decay: the weight of each past score relative to the next newer one.
        past_scores: H, the number of past scores to predict from.
        max_age: n. With 1, every epoch has selection passes.
    """

    def __init__(self, fresh: Scorer, *, decay: float = 0.5, past_scores: int = 4, max_age: int = 3) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        if past_scores < 1:
            raise ValueError(f"past_scores must be at least 1, got {past_scores}")
        if not max_age >= 1:  # also if it is NaN
            raise ValueError(f"max_age must be at least 1 epoch, got {max_age}")
        super().__init__(fresh)
        self.decay, self.past_scores, self.max_age = decay, past_scores, max_age
        self.needs = Needs(
            ids=True, selection_pass=True, columns={"earlier_scores": Column("score", shift, width=past_scores - 1)}
        )

    def plans(self, epoch: int) -> bool:
        return epoch % self.max_age != 0

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        scores = torch.cat([rows.score[:, None], rows.earlier_scores], dim=1)  # (N, H), the newest first
        weights = self.decay ** torch.arange(self.past_scores, dtype=torch.float64) * ~scores.isnan()
        predicted = (scores.nan_to_num(0.0) * weights).sum(1) / weights.sum(1)
        is_recent = (rows.score_epoch > epoch - self.max_age) & (rows.score_epoch >= 0)
        return predicted.masked_fill(~is_recent, float("nan")).to(torch.float32)
