"""The highest scores, without chance except at ties."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.policies.stateless import Stateless
from selective_backprop.types import Selection


class TopKPolicy(Stateless):
    """Keep the share of the candidates with the highest scores; at least one. Ties are decided by lot.

    Args:
        selectivity: the share; of N candidates, ceil(selectivity * N) are kept.

    >>> TopKPolicy(selectivity=0.5).select(torch.tensor([1.0, 9.0, 4.0, 2.0]), torch.Generator()).positions.tolist()
    [1, 2]
    """

    def __init__(self, *, selectivity: float) -> None:
        functional.beta_from_selectivity(selectivity)  # the same bounds hold
        self.selectivity = selectivity

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        # The small allowance keeps 0.1 * 30 from being rounded up to 4.
        num_selected = math.ceil(self.selectivity * len(scores) - 1e-9)
        positions, chances = functional.highest(scores, num_selected, generator)
        return Selection(positions, torch.ones(num_selected), chances)
