"""InfoBatch's rule: drop some candidates below the mean score, and give the others below it a larger weight."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.options import require_numbers
from selective_backprop.types import Policy, Selection


class BelowMeanPolicy(Policy):
    """Drop candidates below the mean score with probability `prune`. The others below it get weight 1 / (1 - prune).

    So the expected sum of gradients over an epoch is that of training on everything.

    Args:
        prune: the probability, in [0, 1).

    >>> BelowMeanPolicy(prune=0.5).select(torch.tensor([0.0, 0.0, 9.0]), torch.Generator()).probabilities.tolist()
    [0.5, 0.5, 1.0]

    Qin et al. 2024, https://arxiv.org/abs/2303.04947.
    """

    weighting = "unbiased"

    def __init__(self, *, prune: float) -> None:
        require_numbers(prune=prune)
        if not 0 <= prune < 1:
            raise ValueError(f"prune must be in [0, 1), got {prune}")
        self.prune = prune

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        probabilities = torch.ones(len(scores), dtype=torch.float64)
        # Equal scores must not fall below their own mean by rounding.
        probabilities[scores < scores.to(torch.float64).mean() - 1e-6 * scores.abs().max()] = 1 - self.prune
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, probabilities[positions].reciprocal().to(torch.float32), probabilities)
