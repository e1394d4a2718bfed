"""What a pass of each network costs, so that scoring with a smaller network counts at its share."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from selective_backprop.scorers import ProxyScorer
from selective_backprop.scorers.base import CHECK_EVERY
from selective_backprop.types import Scorer


@dataclass(frozen=True)
class ScoringCost:
    """What scoring costs, in forward passes of the network that is trained."""

    per_scored: float = 1.0
    """For each candidate that is scored."""
    per_offered: float = 0.0
    """For each candidate that is offered: a proxy also learns from candidates that are not scored."""


def scoring_cost(scorer: Scorer, model: nn.Module, example: Tensor) -> ScoringCost:
    """Cost of a scorer: 1 per candidate if the network itself scores, and the share of a proxy otherwise.

    A proxy's step of training costs three of its forward passes. It makes one with every n-th candidate batch, and the
    network itself runs on every m-th batch to compare scores.

    Args:
        scorer: the scorer of a run.
        model: the network that is trained.
        example: a batch of one input, as the network takes it.
    """
    while not isinstance(scorer, ProxyScorer) and isinstance(inner := getattr(scorer, "fresh", None), Scorer):
        scorer = inner
    if not isinstance(scorer, ProxyScorer):
        return ScoringCost()
    share = forward_operations(scorer.model, example) / forward_operations(model, example)
    step = 3 * share / scorer.train_every if scorer.train_every else 0.0
    # After scoring it may learn from a part of the batch alone.
    return ScoringCost(share + 1 / CHECK_EVERY - (1 - scorer.train_share) * step, step)


@torch.no_grad()
def forward_operations(model: nn.Module, example: Tensor) -> int:
    """Floating-point operations of convolutions and matrix products in one forward pass.

    >>> forward_operations(nn.Linear(3, 5), torch.zeros(1, 3))
    30
    """
    network = copy.deepcopy(model).eval()
    with FlopCounterMode(display=False) as counter:
        network(example)
    return int(counter.get_total_flops())
