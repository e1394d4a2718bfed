"""Selective-Backprop's rule: chance = (percentile of the score among recent ones) ** beta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.description import Described
from selective_backprop.history import LossHistory
from selective_backprop.types import Selection


class PercentilePolicy(Described):
    """Keep each candidate with probability CDF_R(score) ** beta.

    Args:
        selectivity: expected share of candidates to keep; gives beta = 1 / selectivity - 1.
        beta: the exponent itself, instead of selectivity.
        history_size: R, how many recent scores the percentile refers to; 1 for the candidate batch alone.
        fixed_size: keep int(selectivity * N) of every N candidates (at least one) by systematic sampling, with
            inclusion in proportion to the same probabilities, instead of flipping a coin for each.
        noise_guard: a percentile above which the chance falls again, to 0 for the very highest scores. Examples
            with wrong labels are found there.
        unbiased: weight each selected example by 1 / probability, which makes the sum of gradients over an epoch
            that of training on everything, in expectation, except where max_weight cuts it.
        max_weight: the largest weight; `clipped` tells how often it was needed.

    >>> policy = PercentilePolicy(beta=0)
    >>> policy.select(torch.tensor([3.0, 1.0]), torch.Generator()).positions.tolist()
    [0, 1]

    Jiang et al. 2019, https://arxiv.org/abs/1910.00762, algorithm 2.
    """

    def __init__(
        self,
        *,
        selectivity: float | None = None,
        beta: float | None = None,
        history_size: int = 1024,
        fixed_size: bool = False,
        noise_guard: float | None = None,
        unbiased: bool = False,
        max_weight: float = 10.0,
    ) -> None:
        if (selectivity is None) == (beta is None):
            raise ValueError(f"give either selectivity or beta, got selectivity={selectivity} and beta={beta}")
        if noise_guard is not None and not 0 < noise_guard < 1:
            raise ValueError(f"noise_guard must be a percentile in (0, 1), got {noise_guard}")
        if max_weight < 1:
            raise ValueError(f"max_weight must be at least 1, got {max_weight}")
        self.selectivity, self.beta = _exponent(selectivity, beta, noise_guard)
        self.history_size = history_size
        self.fixed_size = fixed_size
        self.noise_guard = noise_guard
        self.unbiased = unbiased
        self.max_weight = max_weight
        self.history = LossHistory(history_size)
        self._num_clipped = self._num_weighted = 0

    @property
    def clipped(self) -> float:
        """Share of the selected examples whose weight was cut to max_weight."""
        return self._num_clipped / self._num_weighted if self._num_weighted else 0.0

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        percentiles = self.history.rank(scores)
        if self.noise_guard is not None:
            percentiles = functional.guarded_percentiles(percentiles, self.noise_guard)
        probabilities = functional.keep_probability(percentiles, self.beta)
        if self.fixed_size:
            positions, probabilities = _fixed_size(probabilities, scores, self.selectivity, generator)
        else:
            positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, self._weights(probabilities, positions), probabilities)

    def _weights(self, probabilities: Tensor, positions: Tensor) -> Tensor:
        if not self.unbiased:
            return torch.ones(positions.shape)
        weights = probabilities[positions].reciprocal().to(torch.float32)
        self._num_clipped += int((weights > self.max_weight).sum())
        self._num_weighted += len(weights)
        return weights.clamp_(max=self.max_weight)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history.state_dict(), "clipped": [self._num_clipped, self._num_weighted]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
        self._num_clipped, self._num_weighted = state["clipped"]


def _exponent(selectivity: float | None, beta: float | None, noise_guard: float | None) -> tuple[float, float]:
    """Selectivity and beta, of which one is given."""
    if selectivity is not None:
        plain = functional.beta_from_selectivity(selectivity)
        guarded = noise_guard is not None and plain > 0
        beta = functional.beta_from_guarded_selectivity(selectivity, noise_guard) if guarded else plain  # type: ignore[arg-type]
        return selectivity, beta
    assert beta is not None
    return functional.selectivity_from_beta(beta) * (noise_guard or 1.0) ** beta, beta


def _fixed_size(
    probabilities: Tensor, scores: Tensor, selectivity: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Positions of a sample whose size does not vary, and the probabilities it was drawn with."""
    possible = int((probabilities > 0).sum())
    num_selected = min(possible, max(1, int(len(scores) * selectivity + 1e-9)))
    probabilities = functional.fixed_size_probabilities(probabilities, num_selected)
    # In order of score, so that the sample is spread over easy and hard alike.
    order = scores.argsort()
    positions = order[functional.systematic_sample(probabilities[order], generator)]
    return positions.sort().values, probabilities
