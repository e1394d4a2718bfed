"""The same chance for every candidate."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.types import Policy, Selection


class UniformPolicy(Policy):
    """Keep each candidate with the same probability, independently of the others.

    Args:
        selectivity: the probability to keep a candidate.

    >>> UniformPolicy(selectivity=1).select(torch.zeros(3), torch.Generator()).positions.tolist()
    [0, 1, 2]
    """

    selectivity: float

    def __init__(self, *, selectivity: float) -> None:
        functional.beta_from_selectivity(selectivity)  # the same bounds hold
        self.selectivity = selectivity

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        probabilities = torch.full((len(scores),), self.selectivity, dtype=torch.float64)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, torch.ones(positions.shape), probabilities)
