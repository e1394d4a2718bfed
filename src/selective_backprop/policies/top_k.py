"""Keep the highest scores, without randomness except for ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.policies.sizes import Sizes
from selective_backprop.types import Policy, Selection


class TopKPolicy(Policy):
    """Keep the candidates with the highest scores. Ties are decided by lot.

    Fractions of an example are carried over to the next candidate batch: with a share of a third, batches of 8 keep 3
    or 2 candidates, and the share is right over an epoch.

    Args:
        selectivity: the share of candidates to keep, or one share per epoch, of which the last one stays.

    >>> TopKPolicy(selectivity=0.5).select(torch.tensor([1.0, 9.0, 4.0, 2.0]), torch.Generator()).positions.tolist()
    [1, 2]
    """

    def __init__(self, *, selectivity: float | Sequence[float]) -> None:
        shares: Sequence[Any] = selectivity if isinstance(selectivity, list | tuple) else (selectivity,)
        if not shares:
            raise ValueError("selectivity must be a share of the candidates, or one per epoch, got no share at all")
        for share in shares:
            functional.beta_from_selectivity(share)  # the same bounds hold
        self.shares = tuple(shares)
        self.selectivity = shares[0] if len(self.shares) == 1 else None
        self.sizes = Sizes(self.shares[0])
        """How many to keep of each batch."""

    def begin_epoch(self, epoch: int, num_epochs: int | None) -> None:
        self.sizes.share = self.shares[min(epoch, len(self.shares) - 1)]

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        positions, chances = functional.highest(scores, self.sizes.next_size(len(scores)), generator)
        return Selection(positions, torch.ones(len(positions)), chances)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self.sizes.owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sizes.owed = state["owed"]
