"""What Selective-Backprop does in expectation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.policies.percentile import PercentilePolicy
from selective_backprop.types import Selection


class ExpectedPolicy(Described):
    """Keep everything, weighted by the probability that a percentile policy would have kept it with.

    Weights are probability / selectivity: in batches 1 / selectivity times larger, the mean loss then is the
    expectation of the mean loss over the examples that the percentile policy selects.

    Args:
        selectivity: of the percentile policy.
        history_size: R.

    >>> ExpectedPolicy(selectivity=0.5).select(torch.tensor([1.0, 2.0]), torch.Generator()).weights.tolist()
    [1.0, 2.0]
    """

    def __init__(self, *, selectivity: float, history_size: int = 1024) -> None:
        self.selectivity = selectivity
        self.history_size = history_size
        self._coins = PercentilePolicy(selectivity=selectivity, history_size=history_size)

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        chance = self._coins.history.rank(scores).pow(self._coins.beta)
        weights = (chance / self.selectivity).to(torch.float32)
        return Selection(torch.arange(len(scores)), weights, torch.ones(len(scores), dtype=torch.float64))

    def state_dict(self) -> dict[str, Any]:
        return self._coins.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coins.load_state_dict(state)
