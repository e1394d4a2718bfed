"""Which rollouts are backpropagated: all are generated and rewarded, and those that teach are trained on.

# P = prompts, G = rollouts of a prompt, m = rollouts of a prompt that are trained on
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-8
"""Rewards with a smaller variance differ by rounding alone."""


@dataclass(frozen=True)
class Rollouts:
    """A rule for which rollouts are backpropagated. Made by `drop_equal` and `downsample`."""

    m: int | None = None
    """Most rollouts of a prompt to train on; None for all."""

    def __post_init__(self) -> None:
        if self.m is not None and (isinstance(self.m, bool) or not isinstance(self.m, int) or self.m < 2):
            raise ValueError(f"m must be a whole number >= 2, got {self.m!r}")

    def check(self, num_generations: int) -> None:
        """Raise if this rule does not fit groups of this size."""
        if self.m is not None and self.m > num_generations:
            raise ValueError(
                f"downsample({self.m}) trains on {self.m} rollouts of each prompt, but only {num_generations} are "
                "generated: raise num_generations, or lower m"
            )

    def scale(self, num_generations: int) -> float:
        """Factor for the advantages of what is kept, if the loss stays a mean over all rollouts: G / m."""
        return 1.0 if self.m is None else num_generations / self.m

    def keep(self, rewards: Tensor) -> Tensor:
        """Return (P, G) bool: which rollouts are backpropagated, by their rewards (P, G).

        >>> downsample(2).keep(torch.tensor([[0.0, 1.0, 0.5, 0.4], [1.0, 1.0, 1.0, 1.0]])).int().tolist()
        [[1, 1, 0, 0], [0, 0, 0, 0]]
        """
        if not isinstance(rewards, Tensor) or rewards.dim() != 2:
            got = f"the shape {tuple(rewards.shape)}" if isinstance(rewards, Tensor) else type(rewards).__name__
            raise ValueError(
                f"rewards must be a tensor with one row per prompt, (prompts, rollouts), got {got}: "
                "pass rewards.view(-1, G), where G is the number of rollouts of each prompt"
            )
        teaches = rewards.double().var(dim=1, correction=0) > SMALLEST_VARIANCE
        chosen = torch.ones_like(rewards, dtype=torch.bool) if self.m is None else most_varied(rewards, self.m)
        return chosen & teaches[:, None]


def drop_equal() -> Rollouts:
    """Leave out groups whose rewards are all equal. Their advantages are 0, so the gradient stays the same.

    >>> drop_equal().keep(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).tolist()
    [[True, True], [False, False]]

    Yu et al. 2025, https://arxiv.org/abs/2503.14476.
    """
    return Rollouts()


def downsample(m: int) -> Rollouts:
    """Train on the m rollouts of each prompt whose rewards have the largest variance. Equal groups are left out.

    Advantages are still computed from all rollouts. The paper computes them from the m.

    Args:
        m: number of rollouts of each prompt to train on.

    >>> downsample(4).m
    4

    Xu et al. 2025, https://arxiv.org/abs/2504.13818.
    """
    return Rollouts(m)


def most_varied(rewards: Tensor, m: int) -> Tensor:
    """Return (P, G) bool: the m rewards of each row that have the largest variance.

    They are always the highest k and the lowest m - k, for some k.
    """
    rows, size = rewards.shape
    in_order, order = rewards.double().sort(dim=1, stable=True)
    places = torch.arange(size, device=rewards.device)
    best, chosen = torch.full((rows,), -1.0, dtype=torch.float64, device=rewards.device), torch.zeros_like(order)
    for highest in range(m + 1):
        ends = torch.cat([places[: m - highest], places[size - highest :]])
        variance = in_order[:, ends].var(dim=1, correction=0)
        better = variance > best + SMALLEST_VARIANCE
        best = torch.where(better, variance, best)
        taken = torch.zeros(size, dtype=order.dtype, device=rewards.device).index_fill_(0, ends, 1)
        chosen = torch.where(better[:, None], taken, chosen)
    return torch.zeros_like(order).scatter_(1, order, chosen).bool()
