"""Selective-Backprop's rule: chance = (percentile of the score among recent ones) ** beta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.policies.history import LossHistory
from selective_backprop.policies.sizes import Debt, Sizes, draw_whole, sample_of_size
from selective_backprop.types import Policy, Selection

HISTORY_SIZE = 32
"""R, unless another is asked for. While losses fall, older ones are no measure for the current ones."""
PAPER_HISTORY_SIZE = 1024


class PercentilePolicy(Policy):
    """Keep each candidate with probability CDF_R(score) ** beta.

    The share that is kept is the one asked for, also while losses fall and with ties. Each score's chance is the mean
    of t ** beta over its own part of the CDF of the last R scores, so that the chances of R scores have the mean
    1 / (beta + 1). What was kept too little or too much is made up for over the next 32 candidates by another beta.

    Args:
        selectivity: share of candidates to keep; gives beta = 1 / selectivity - 1.
        beta: the exponent itself, instead of selectivity.
        history_size: R, how many recent scores the percentile refers to; 32, or 1,024 with paper. A candidate batch
            that is larger is ranked among itself. Larger ones tell hard batches from easy ones, and follow falling
            losses later.
        fixed_size: keep the same share of every candidate batch by systematic sampling, with inclusion in proportion
            to the same probabilities, instead of flipping a coin for each. What does not make a whole example is
            carried over to the next batch.
        noise_guard: a percentile above which the chance falls again, to about 0 for the very highest scores. Examples
            with wrong labels are found there.
        unbiased: weight each selected example by 1 / probability, which makes the sum of gradients over an epoch
            that of training on everything, in expectation, except where max_weight cuts it. With fixed_size, a size
            between two whole numbers is then drawn for each batch, not carried over.
        max_weight: the largest weight; `clipped` tells how often it was needed.
        paper: the rule of the paper to the letter, mean rank ** beta among the last 1,024. While losses fall, the
            older ones are higher and it keeps fewer candidates than asked for; while they rise, more.

    >>> policy = PercentilePolicy(beta=0)
    >>> policy.select(torch.tensor([3.0, 1.0]), torch.Generator()).positions.tolist()
    [0, 1]

    Jiang et al. 2019, https://arxiv.org/abs/1910.00762, algorithm 2.
    """

    selectivity: float

    def __init__(
        self,
        *,
        selectivity: float | None = None,
        beta: float | None = None,
        history_size: int | None = None,
        fixed_size: bool = False,
        noise_guard: float | None = None,
        unbiased: bool = False,
        max_weight: float = 10.0,
        paper: bool = False,
    ) -> None:
        if (selectivity is None) == (beta is None):
            raise ValueError(f"give either selectivity or beta, got selectivity={selectivity} and beta={beta}")
        if noise_guard is not None and not 0 < noise_guard < 1:
            raise ValueError(f"noise_guard must be a percentile in (0, 1), got {noise_guard}")
        if max_weight < 1:
            raise ValueError(f"max_weight must be at least 1, got {max_weight}")
        if not isinstance(paper, bool):  # "False" of a command line would count as true
            raise ValueError(f"paper must be true or false, got {paper!r}")
        self.selectivity, self.beta = _exponent(selectivity, beta, noise_guard)
        self.history_size = history_size
        self.fixed_size = fixed_size
        self.noise_guard = noise_guard
        self.unbiased = self.gives_weights = unbiased
        self.max_weight = max_weight
        self.paper = paper
        default_size = PAPER_HISTORY_SIZE if paper else HISTORY_SIZE
        self.history = LossHistory(default_size if history_size is None else history_size)
        self._sizes = Sizes(self.selectivity, whole=not unbiased)
        self._debt = Debt(self.selectivity)
        self._num_clipped = self._num_weighted = 0

    @property
    def clipped(self) -> float:
        """Share of the selected examples whose weight was cut to max_weight."""
        return self._num_clipped / self._num_weighted if self._num_weighted else 0.0

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        if self.fixed_size:
            size = self.size_for(scores.numel())
            selection = self.select_part(scores, generator, size, draw_whole(size, generator))
            self.count_kept(scores.numel(), selection.positions.numel())
            return selection
        selection = self.select_by_coins(scores, generator, self.share_for(scores.numel()))
        self.make_up_for(scores.numel(), selection.positions.numel())
        return selection

    # ---- coins, for one batch or for several parts of it

    def share_for(self, num_candidates: int) -> float:
        """The share of the next candidates to keep: the one asked for, and what makes up for those before."""
        return self._debt.share_for(num_candidates)

    def make_up_for(self, num_candidates: int, num_kept: float) -> None:
        """So many were kept of so many: the next share is lower or higher by what is too much or missing."""
        if not self.paper:
            self._debt.count_kept(num_candidates, num_kept)

    def select_by_coins(self, scores: Tensor, generator: torch.Generator, share: float) -> Selection:
        """Keep each candidate by a coin of its own, this share of them on average."""
        probabilities = self.chances(scores, share)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, self._weights(probabilities, positions), probabilities)

    def chances(self, scores: Tensor, share: float) -> Tensor:
        """Add the scores to the history, and give the chance of each, for this share on average."""
        if self.paper:
            percentiles = self.history.rank(scores)
            if self.noise_guard is not None:
                percentiles = functional.guarded_percentiles(percentiles, self.noise_guard)
            return functional.keep_probability(percentiles, self.beta)
        below, up_to, total = self.history.counts(scores)
        return functional.mean_keep_probability(below, up_to, total, self._beta_for(share), self.noise_guard)

    def _beta_for(self, share: float) -> float:
        if share == self.selectivity:
            return self.beta
        if self.noise_guard is not None:
            return functional.beta_from_guarded_selectivity(share, self.noise_guard)
        return 1 / share - 1

    # ---- fixed sizes, for one batch or for several parts of it

    def size_for(self, num_candidates: int) -> float:
        """With fixed_size: how many of so many candidates to keep; a whole number unless unbiased."""
        return self._sizes.size_for(num_candidates)

    def count_kept(self, num_candidates: int, num_kept: int) -> None:
        """So many were kept of so many, by a fixed size."""
        self._sizes.count_kept(num_candidates, num_kept)

    def select_part(self, scores: Tensor, generator: torch.Generator, size: float, num_selected: int) -> Selection:
        """Keep num_selected, which is `size` rounded down or up by chance: the probabilities are of all of this."""
        chances = self.chances(scores, self.selectivity)
        positions, probabilities = sample_of_size(chances, scores, size, num_selected, generator)
        return Selection(positions, self._weights(probabilities, positions), probabilities)

    def _weights(self, probabilities: Tensor, positions: Tensor) -> Tensor:
        if not self.unbiased:
            return torch.ones(positions.shape)
        weights = probabilities[positions].reciprocal().to(torch.float32)
        self._num_clipped += int((weights > self.max_weight).sum())
        self._num_weighted += len(weights)
        return weights.clamp_(max=self.max_weight)

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": self.history.state_dict(),
            "clipped": [self._num_clipped, self._num_weighted],
            "debt": self._debt.state_dict(),
            "sizes": self._sizes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
        self._num_clipped, self._num_weighted = state["clipped"]
        self._debt.load_state_dict(state["debt"])
        self._sizes.load_state_dict(state["sizes"])


def _exponent(selectivity: float | None, beta: float | None, noise_guard: float | None) -> tuple[float, float]:
    """Selectivity and beta, of which one is given."""
    if selectivity is not None:
        plain = functional.beta_from_selectivity(selectivity)
        guarded = noise_guard is not None and plain > 0
        beta = functional.beta_from_guarded_selectivity(selectivity, noise_guard) if guarded else plain  # type: ignore[arg-type]
        return selectivity, beta
    assert beta is not None
    return functional.selectivity_from_beta(beta) * (noise_guard or 1.0) ** beta, beta
