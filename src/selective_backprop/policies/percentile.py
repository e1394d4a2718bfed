"""Selective-Backprop's rule: chance = (percentile of the score among recent scores) ** beta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.policies.history import LossHistory
from selective_backprop.policies.sizes import Debt, Sizes, draw_whole, sample_of_size
from selective_backprop.types import Policy, Selection

HISTORY_SIZE = 32
"""Default of R. It is small because old losses tell little about current ones while losses fall."""
PAPER_HISTORY_SIZE = 1024
"""R in the paper."""


class PercentilePolicy(Policy):
    """Keep each candidate with probability CDF_R(score) ** beta.

    It keeps the share asked for, also while losses fall and if there are ties. Each score's chance is the mean of
    t ** beta over its own part of the CDF of the last R scores, so that the chances of R scores have the mean
    1 / (beta + 1). If too few or too many were kept, another beta makes up for it over the next 32 candidates.

    Args:
        selectivity: share of candidates to keep. It gives beta = 1 / selectivity - 1.
        beta: the exponent itself, instead of selectivity.
        history_size: R, the number of recent scores among which percentiles are computed; 32, or 1,024 with paper. The
            scores of a larger candidate batch are ranked within the batch. A large R tells hard batches from easy
            ones, but follows falling losses later.
        fixed_size: keep the same share of every candidate batch by systematic sampling, instead of flipping a coin for
            each candidate. Chances are in proportion to the same probabilities. Fractions of an example are carried
            over to the next batch.
        falls_above: a percentile above which the chance falls again, to about 0 for the very highest scores, because
            examples with wrong labels are found there.
        unbiased: weight each selected example by 1 / probability. Then the expected sum of gradients over an epoch is
            that of training on everything, unless max_weight cuts weights. With fixed_size, fractions of an example
            are then rounded by chance in each batch, not carried over.
        max_weight: the largest weight. `clipped` tells how often weights were cut.
        paper: follow the paper's rule to the letter: mean rank ** beta among the last 1,024 scores. While losses fall,
            older ones are higher and it keeps fewer candidates than asked for; while they rise, it keeps more.

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
        falls_above: float | None = None,
        unbiased: bool = False,
        max_weight: float = 10.0,
        paper: bool = False,
    ) -> None:
        if (selectivity is None) == (beta is None):
            raise ValueError(f"give either selectivity or beta, got selectivity={selectivity} and beta={beta}")
        if falls_above is not None and not 0 < falls_above < 1:
            raise ValueError(f"falls_above must be a percentile in (0, 1), got {falls_above}")
        if max_weight < 1:
            raise ValueError(f"max_weight must be at least 1, got {max_weight}")
        if not isinstance(paper, bool):  # "False" of a command line would count as true
            raise ValueError(f"paper must be true or false, got {paper!r}")
        self.selectivity, self.beta = _exponent(selectivity, beta, falls_above)
        self.history_size = history_size
        self.fixed_size = fixed_size
        self.falls_above = falls_above
        self.unbiased = unbiased
        self.weighting = "unbiased" if unbiased else "none"
        self.max_weight = max_weight
        self.paper = paper
        default_size = PAPER_HISTORY_SIZE if paper else HISTORY_SIZE
        self.history = LossHistory(default_size if history_size is None else history_size)
        self.sizes = Sizes(self.selectivity, whole=not unbiased)
        """How many to keep of each batch, with fixed_size."""
        self.debt = Debt(self.selectivity, pays=not paper)
        """What share of each batch to keep, to make up for too few or too many kept before."""
        self._num_clipped = self._num_weighted = 0

    @property
    def clipped(self) -> float:
        """Share of the selected examples whose weight was cut to max_weight."""
        return self._num_clipped / self._num_weighted if self._num_weighted else 0.0

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        if self.fixed_size:
            size = self.sizes.size_for(scores.numel())
            selection = self.select_part(scores, generator, size, draw_whole(size, generator))
            self.sizes.count_kept(scores.numel(), selection.positions.numel())
            return selection
        selection = self.select_by_coins(scores, generator, self.debt.share_for(scores.numel()))
        self.debt.count_kept(scores.numel(), selection.positions.numel())
        return selection

    # ---- one coin per candidate, for a batch or for several parts of it

    def select_by_coins(self, scores: Tensor, generator: torch.Generator, share: float) -> Selection:
        """Flip a coin for each candidate, and keep this share of them on average."""
        probabilities = self.chances(scores, share)
        positions = functional.flip_coins(probabilities, generator)
        return Selection(positions, self._weights(probabilities, positions), probabilities)

    def chances(self, scores: Tensor, share: float) -> Tensor:
        """Add the scores to the history, and return the chance of each. On average they keep this share."""
        if self.paper:
            percentiles = self.history.rank(scores)
            if self.falls_above is not None:
                percentiles = functional.percentiles_falling_above(percentiles, self.falls_above)
            return functional.keep_probability(percentiles, self.beta)
        below, up_to, total = self.history.counts(scores)
        return functional.mean_keep_probability(below, up_to, total, self._beta_for(share), self.falls_above)

    def _beta_for(self, share: float) -> float:
        if share == self.selectivity:
            return self.beta
        if self.falls_above is not None:
            return functional.beta_falling_above(share, self.falls_above)
        return 1 / share - 1

    # ---- fixed sizes, for one batch or for several parts of it

    def select_part(self, scores: Tensor, generator: torch.Generator, size: float, num_selected: int) -> Selection:
        """Keep num_selected candidates. That is `size` rounded by chance, which the probabilities include."""
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

    def explanation(self) -> str | None:
        if not self.paper:
            return None
        return (
            "the paper's rule selects another share while losses fall or rise. Leave out paper=True to get the share "
            "you ask for"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "history": self.history.state_dict(),
            "clipped": [self._num_clipped, self._num_weighted],
            "debt": self.debt.state_dict(),
            "sizes": self.sizes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
        self._num_clipped, self._num_weighted = state["clipped"]
        self.debt.load_state_dict(state["debt"])
        self.sizes.load_state_dict(state["sizes"])


def _exponent(selectivity: float | None, beta: float | None, falls_above: float | None) -> tuple[float, float]:
    """Return (selectivity, beta), where one of them is computed from the other."""
    if selectivity is not None:
        plain = functional.beta_from_selectivity(selectivity)
        falls = falls_above is not None and plain > 0
        beta = functional.beta_falling_above(selectivity, falls_above) if falls else plain  # type: ignore[arg-type]
        return selectivity, beta
    assert beta is not None
    return functional.selectivity_from_beta(beta) * (falls_above or 1.0) ** beta, beta
