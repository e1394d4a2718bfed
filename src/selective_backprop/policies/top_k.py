"""Keep the highest scores, without randomness except for ties."""

from __future__ import annotations

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
        selectivity: the share of candidates to keep.

    >>> TopKPolicy(selectivity=0.5).select(torch.tensor([1.0, 9.0, 4.0, 2.0]), torch.Generator()).positions.tolist()
    [1, 2]
    """

    selectivity: float

    def __init__(self, *, selectivity: float) -> None:
        functional.beta_from_selectivity(selectivity)  # the same bounds hold
        self.selectivity = selectivity
        self.sizes = Sizes(selectivity)
        """How many to keep of each batch."""

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        positions, chances = functional.highest(scores, self.sizes.next_size(len(scores)), generator)
        return Selection(positions, torch.ones(len(positions)), chances)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self.sizes.owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sizes.owed = state["owed"]
