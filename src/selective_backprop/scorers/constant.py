"""The same score for all candidates, for policies that do not look at scores."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.ledger import LedgerRows
from selective_backprop.types import Candidates, Scorer, Task


class ConstantScorer(Scorer):
    """Gives every candidate the score 0, which is known before loading."""

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return torch.zeros(len(ids))

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        return torch.zeros(candidates.size)
