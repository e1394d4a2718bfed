"""As many as carry a given share of the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.types import Selection


class LossSharePolicy:
    """Keep each candidate with probability percentile ** beta, beta such that a share of the loss is kept.

    It follows the data: where few examples carry the loss, few are kept; where all are hard, nearly all. Made for
    whole epochs: the percentile is among the candidates decided about together, without a history.

    Args:
        loss_share: expected share of the candidates' total score that is kept.

    >>> policy = LossSharePolicy(loss_share=0.9)
    >>> redundant = torch.cat([torch.full((900,), 0.001), torch.full((100,), 1.0)])
    >>> len(policy.select(redundant, torch.Generator().manual_seed(0)).positions) < 300
    True
    """

    def __init__(self, *, loss_share: float) -> None:
        if not 0 < loss_share <= 1:
            raise ValueError(f"loss_share must be in (0, 1], got {loss_share}")
        self.loss_share = loss_share
        self.beta = float("nan")
        """The exponent chosen last."""

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        if bool((scores < 0).any()):
            raise ValueError(f"a share of the loss needs losses >= 0, got {float(scores.min())}")
        percentiles = functional.rank_percentiles(scores)
        self.beta = functional.beta_from_loss_share(percentiles, scores, self.loss_share)
        probabilities = functional.keep_probability(percentiles, self.beta)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, torch.ones(positions.shape), probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta = state["beta"]
