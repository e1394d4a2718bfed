"""Importance sampling: draw candidates with replacement, in proportion to their scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.losses import require_not_negative
from selective_backprop.options import require_flags
from selective_backprop.types import Policy, Selection


class ImportancePolicy(Policy):
    """From each candidate batch draw a share with replacement, each candidate with p = score / sum of scores.

    Scores must be >= 0. Shifting negative scores would not help: the example with the smallest score would then never
    be drawn.

    Args:
        selectivity: the share. From N candidates there are ceil(selectivity * N) draws. 1 keeps every candidate once.
        unbiased: weight each draw by 1 / (N p). Then the expected mean loss of the draws is the mean loss of all
            candidates.

    >>> policy = ImportancePolicy(selectivity=0.5)
    >>> policy.select(torch.tensor([0.0, 1.0, 0.0, 0.0]), torch.Generator()).positions.tolist()
    [1, 1]

    Katharopoulos and Fleuret 2018, https://arxiv.org/abs/1803.00942.
    """

    selectivity: float

    def __init__(self, *, selectivity: float, unbiased: bool = False) -> None:
        require_flags(unbiased=unbiased)
        functional.beta_from_selectivity(selectivity)  # the same bounds hold
        self.selectivity = selectivity
        self.unbiased = unbiased
        self.weighting = "unbiased" if unbiased else "none"
        self.with_replacement = selectivity < 1

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        size = len(scores)
        if self.selectivity == 1:
            return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))
        require_not_negative(scores, None, "score")
        total = scores.to(torch.float64).sum()
        shares = scores.to(torch.float64) / total if total > 0 else torch.full((size,), 1 / size, dtype=torch.float64)
        num_draws = math.ceil(self.selectivity * size - 1e-9)
        positions = _draw(shares, num_draws, generator)
        weights = 1 / (size * shares[positions]) if self.unbiased else torch.ones(num_draws)
        return Selection(positions, weights.to(torch.float32), 1 - (1 - shares) ** num_draws)


def _draw(shares: Tensor, num_draws: int, generator: torch.Generator) -> Tensor:
    """Draw positions, and return them in rising order.

    This inverts the CDF, because torch.multinomial takes no more than 2 ** 24 candidates.
    """
    edges = shares.cumsum(0)
    points = torch.rand(num_draws, generator=generator, dtype=torch.float64) * edges[-1]
    # right=True: a point on an edge belongs to the next share, so that a share of 0 is never drawn.
    positions = torch.searchsorted(edges, points, right=True)
    return positions.clamp_(max=int(shares.nonzero()[-1])).sort().values
