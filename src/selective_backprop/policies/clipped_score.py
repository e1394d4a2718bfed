"""Keep each candidate with its score as the chance."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.options import require_numbers
from selective_backprop.types import Policy, Selection


class ClippedScorePolicy(Policy):
    """Keep each candidate with probability clip(score, minimum, 1).

    Args:
        minimum: the smallest chance, in [0, 1].

    >>> ClippedScorePolicy(minimum=0.1).select(torch.tensor([0.0, 0.5, 2.0]), torch.Generator()).probabilities.tolist()
    [0.1, 0.5, 1.0]
    """

    def __init__(self, *, minimum: float) -> None:
        require_numbers(minimum=minimum)
        if not 0 <= minimum <= 1:
            raise ValueError(f"minimum must be a probability in [0, 1], got {minimum}")
        self.minimum = minimum

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        probabilities = scores.to(torch.float64).clamp(self.minimum, 1.0)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, torch.ones(positions.shape), probabilities)
