"""Selective-Backprop's rule: chance = (percentile of the score among recent scores) ** beta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.options import require_flags, require_numbers
from selective_backprop.policies.history import LossHistory
from selective_backprop.policies.sizes import Debt, Sizes
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
        unbiased: weight each selected example by 1 / probability. Then the expected sum of gradients over an epoch is
            that of training on everything, unless max_weight cuts weights. It cannot be had with fixed_size, which
            carries fractions of an example over: a batch's probabilities would depend on the batch before.
        max_weight: the largest weight.
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
        unbiased: bool = False,
        max_weight: float = 10.0,
        paper: bool = False,
    ) -> None:
        require_flags(fixed_size=fixed_size, unbiased=unbiased, paper=paper)
        if (selectivity is None) == (beta is None):
            raise ValueError(f"give either selectivity or beta, got selectivity={selectivity} and beta={beta}")
        if fixed_size and unbiased:
            raise ValueError("give either fixed_size or unbiased: unbiased weights need a coin for each candidate")
        require_numbers(max_weight=max_weight)
        if not max_weight >= 1:  # also if it is NaN
            raise ValueError(f"max_weight must be at least 1, got {max_weight}")
        if selectivity is not None:
            self.selectivity, self.beta = selectivity, functional.beta_from_selectivity(selectivity)
        elif beta is not None:
            self.selectivity, self.beta = functional.selectivity_from_beta(beta), beta
        self.history_size = history_size
        self.fixed_size = fixed_size
        self.unbiased = unbiased
        self.weighting = "unbiased" if unbiased else "none"
        self.max_weight = max_weight
        self.paper = paper
        default_size = PAPER_HISTORY_SIZE if paper else HISTORY_SIZE
        self.history = LossHistory(default_size if history_size is None else history_size)
        self.sizes = Sizes(self.selectivity)
        """How many to keep of each batch, with fixed_size."""
        self.debt = Debt(self.selectivity)
        """What share of each batch to keep, to make up for too few or too many kept before."""

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        size = len(scores)
        if self.fixed_size:
            chances = self.chances(scores, self.selectivity)
            positions, chances = functional.sample_of_size(chances, scores, self.sizes.next_size(size), generator)
        else:
            chances = self.chances(scores, self.debt.share_for(size))
            positions = functional.flip_coins(chances, generator)
            self.debt.count_kept(size, len(positions))
        weights = torch.ones(len(positions))
        if self.unbiased:
            weights = chances[positions].reciprocal().to(torch.float32).clamp_(max=self.max_weight)
        return Selection(positions, weights, chances)

    def chances(self, scores: Tensor, share: float) -> Tensor:
        """Add the scores to the history, and return the chance of each. On average they keep this share.

        The paper's rule does not make up for what was missed before: it goes by the selectivity.
        """
        if self.paper:
            return functional.keep_probability(self.history.rank(scores), self.beta)
        below, up_to, total = self.history.counts(scores)
        beta = self.beta if share == self.selectivity else 1 / share - 1
        return functional.mean_keep_probability(below, up_to, total, beta)

    def explanation(self) -> str | None:
        if not self.paper:
            return None
        return (
            "the paper's rule selects another share while losses fall or rise. Leave out paper=True to get the share "
            "you ask for"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history.state_dict(), "debt": self.debt.owed, "owed": self.sizes.owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.load_state_dict(state["history"])
        self.debt.owed, self.sizes.owed = state["debt"], state["owed"]
