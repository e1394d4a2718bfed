"""Scores of earlier selection passes (Stale-SB).

# N = candidates, H = past scores kept
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import arguments
from selective_backprop.ledger import Column, LedgerRows, shift
from selective_backprop.options import require_numbers
from selective_backprop.scorers.base import FreshScorer
from selective_backprop.types import Candidates, Needs, Scorer, Task


class StoredScorer(Scorer):
    """Scores candidates anew in every n-th epoch. In between, it goes by their last scores, before loading.

    By default that is the last score itself. With more past scores, it is their exponentially weighted average. An
    example that has no score yet is trained on: a sampler may offer new examples at any time.

    Args:
        fresh: scores loaded candidates.
        every: n. With 1, every epoch has selection passes.
        first_epoch: the epoch of the first selection pass, which is the length of the warm-up.
        past_scores: H, the number of past scores in the average.
        decay: the weight of each past score relative to the next newer one.
    """

    def __init__(
        self, fresh: Scorer, *, every: int, first_epoch: int = 0, past_scores: int = 1, decay: float = 0.5
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number of epochs >= 1, got {every!r}")
        require_numbers(decay=decay)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {decay}")
        if not isinstance(past_scores, int) or past_scores < 1:
            raise ValueError(f"past_scores must be a whole number >= 1, got {past_scores!r:.100}")
        self.fresh, self.score_name = fresh, fresh.score_name
        self.every, self.first_epoch = every, first_epoch
        self.past_scores, self.decay = past_scores, decay
        columns = {"earlier_scores": Column("score", shift, width=past_scores - 1)} if past_scores > 1 else {}
        self.needs = Needs(ids=True, selection_pass=True, columns=columns)

    def plans(self, epoch: int) -> bool:
        return epoch > self.first_epoch and (epoch - self.first_epoch) % self.every != 0

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        if self.past_scores == 1:
            return rows.score
        scores = torch.cat([rows.score[:, None], rows.earlier_scores], dim=1)  # (N, H), the newest first
        weights = self.decay ** torch.arange(self.past_scores, dtype=torch.float64) * ~scores.isnan()
        return ((scores.nan_to_num(0.0) * weights).sum(1) / weights.sum(1)).to(torch.float32)  # NaN without any score

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        self.fresh.check_run(num_examples, num_epochs)

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        return self.fresh.score(candidates, task)

    def state_dict(self) -> dict[str, Any]:
        return self.fresh.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fresh.load_state_dict(state)

    def options_in_method(self) -> list[str]:
        """List the scorer's own options, and those of `fresh`."""
        own = [argument for argument in arguments(self) if not argument.startswith("fresh=")]
        return own + self.fresh.options_in_method()


def fresh_of(scorer: Scorer) -> FreshScorer | None:
    """Return the scorer that runs a model on loaded candidates: this one, or the one inside it; None without one."""
    inner = scorer.fresh if isinstance(scorer, StoredScorer) else scorer
    return inner if isinstance(inner, FreshScorer) else None
