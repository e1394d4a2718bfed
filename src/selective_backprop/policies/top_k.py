"""The highest scores, without chance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.types import Selection


class TopKPolicy:
    """Keep the share of each candidate batch with the highest scores; at least one, earlier ones first at ties.

    Args:
        selectivity: the share; of N candidates, ceil(selectivity * N) are kept.

    >>> TopKPolicy(selectivity=0.5).select(torch.tensor([1.0, 9.0, 4.0, 2.0]), torch.Generator()).positions.tolist()
    [1, 2]
    """

    def __init__(self, *, selectivity: float) -> None:
        functional.beta_from_selectivity(selectivity)  # the same bounds hold
        self.selectivity = selectivity

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        # The small allowance keeps 0.1 * 30 from being rounded up to 4.
        num_selected = math.ceil(self.selectivity * len(scores) - 1e-9)
        # A stable sort decides ties the same way on every machine; topk does not.
        highest = scores.argsort(descending=True, stable=True)[:num_selected]
        probabilities = torch.zeros(len(scores), dtype=torch.float64).index_fill_(0, highest, 1.0)
        return Selection(highest.sort().values, torch.ones(num_selected), probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
