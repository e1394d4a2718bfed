"""Selective-Backprop's rule: chance = (percentile of the score among recent ones) ** beta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.history import LossHistory
from selective_backprop.types import Selection


class PercentilePolicy:
    """Keep each candidate with probability CDF_R(score) ** beta, by a coin of its own.

    Args:
        selectivity: expected share of candidates to keep; gives beta = 1 / selectivity - 1.
        beta: the exponent itself, instead of selectivity.
        history_size: R, how many recent scores the percentile refers to.

    >>> policy = PercentilePolicy(beta=0)
    >>> policy.select(torch.tensor([3.0, 1.0]), torch.Generator()).positions.tolist()
    [0, 1]

    Jiang et al. 2019, https://arxiv.org/abs/1910.00762, algorithm 2.
    """

    def __init__(
        self, *, selectivity: float | None = None, beta: float | None = None, history_size: int = 1024
    ) -> None:
        if (selectivity is None) == (beta is None):
            raise ValueError(f"give either selectivity or beta, got selectivity={selectivity} and beta={beta}")
        if selectivity is not None:
            beta = functional.beta_from_selectivity(selectivity)
        assert beta is not None
        self.beta = beta
        self.selectivity = functional.selectivity_from_beta(beta)
        self.history_size = history_size
        self.history = LossHistory(history_size)

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        probabilities = functional.keep_probability(self.history.rank(scores), self.beta)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, torch.ones(positions.shape), probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
