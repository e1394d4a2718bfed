"""As many as carry a given share of the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.description import Described
from selective_backprop.types import Selection


class LossSharePolicy(Described):
    """Keep the highest scores, as many as it takes to have a given share of their sum. Ties are decided by lot.

    It follows the data: where few examples carry the loss, few are kept; where all are hard, nearly all. Made for
    whole epochs: what is decided about together is all there is, without a history.

    Args:
        loss_share: share of the candidates' total score that is kept.
        soft: give each candidate the chance percentile ** beta instead, with beta such that the expected share is
            kept. Everything has a chance, and more is kept for the same share.

    >>> policy = LossSharePolicy(loss_share=0.9)
    >>> redundant = torch.cat([torch.full((900,), 0.001), torch.full((100,), 1.0)])
    >>> len(policy.select(redundant, torch.Generator()).positions)
    91
    """

    def __init__(self, *, loss_share: float, soft: bool = False) -> None:
        if not 0 < loss_share <= 1:
            raise ValueError(f"loss_share must be in (0, 1], got {loss_share}")
        if not isinstance(soft, bool):  # "False" of a command line would count as true
            raise ValueError(f"soft must be true or false, got {soft!r}")
        self.loss_share, self.soft = loss_share, soft
        self.beta = float("nan")
        """The exponent chosen last, if soft."""

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        if bool((scores < 0).any()):
            raise ValueError(f"a share of the loss needs losses >= 0, got {float(scores.min())}")
        if self.soft:
            percentiles = functional.rank_percentiles(scores)
            self.beta = functional.beta_from_loss_share(percentiles, scores, self.loss_share)
            chances = functional.keep_probability(percentiles, self.beta)
            positions = functional.flip_coins(chances, generator)
        else:
            count = functional.count_for_loss_share(scores, self.loss_share)
            positions, chances = functional.highest(scores, count, generator)
        return Selection(positions, torch.ones(positions.shape), chances)

    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta = state["beta"]
