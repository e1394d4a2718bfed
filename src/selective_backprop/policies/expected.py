"""Keep everything, weighted by what Selective-Backprop would keep in expectation."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.policies.percentile import PercentilePolicy
from selective_backprop.types import Selection


class ExpectedPolicy(PercentilePolicy):
    """Keep everything, and weight each candidate by the probability with which `PercentilePolicy` would keep it.

    Weights are probability / selectivity, with a mean of 1. In batches that are 1 / selectivity times larger, the mean
    loss is the expected mean loss over the examples that `PercentilePolicy` selects.

    Args:
        selectivity: selectivity of the percentile policy.

    >>> ExpectedPolicy(selectivity=0.5).select(torch.tensor([1.0, 2.0]), torch.Generator()).weights.tolist()
    [0.5, 1.5]
    """

    def __init__(self, *, selectivity: float) -> None:
        super().__init__(selectivity=selectivity)
        self.weighting = "biased"

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        chance = self.chances(scores, self.debt.share_for(len(scores)))
        self.debt.count_kept(len(scores), float(chance.sum()))
        weights = (chance / self.selectivity).to(torch.float32)
        return Selection(torch.arange(len(scores)), weights, torch.ones(len(scores), dtype=torch.float64))
