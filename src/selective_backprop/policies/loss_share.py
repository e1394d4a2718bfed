"""Keep as many of the hardest candidates as carry a given share of the excess loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.options import require_numbers
from selective_backprop.types import Policy, Selection


class LossSharePolicy(Policy):
    """Keep the highest scores, as many as it takes to carry a given share of the loss. Ties are decided by lot.

    A score counts by its excess: how far it is above the smallest. So a floor under all losses, as label smoothing puts
    there, changes nothing.

    How many are kept depends on the data: few if few examples carry the loss, nearly all if all are hard. The policy is
    made for whole epochs. It has no history, and looks only at the candidates of one selection.

    No excess counts for more than `cap` times their mean. Outliers do not count, and have no priority: one is kept with
    the average chance of a candidate. Otherwise a broken example could use up the share, and would be trained on in
    every epoch, much more often than the rest. At most ten scores are outliers, those more than 100 times as high as
    the next ones; see `functional.is_outlier`. If they are more than one in a thousand, they may be a rare class, and
    all are kept.

    At least one candidate is kept, if there is any.

    Args:
        loss_share: share of the candidates' total excess that is kept.
        cap: no excess counts for more than this many times the mean. With infinity, scores count as they are, and there
            are no outliers.
        keep_at_least: keep at least this share of the candidates, however few carry the loss.
        skip_at_least: if fewer than this share of the candidates could be left out, none is. A small saving is not
            worth what training loses by it.

    >>> policy = LossSharePolicy(loss_share=0.9)
    >>> redundant = torch.cat([torch.full((900,), 0.001), torch.full((100,), 1.0)])
    >>> len(policy.select(redundant, torch.Generator()).positions)
    90
    >>> policy.keep_fraction(torch.tensor([0.0, *[1.0] * 1000, 1e8]))  # not 0.001
    0.899...
    >>> LossSharePolicy(loss_share=0.9, skip_at_least=0.3).keep_fraction(torch.ones(200))  # a tenth is too few
    1.0
    """

    def __init__(
        self,
        *,
        loss_share: float,
        cap: float = 20.0,
        keep_at_least: float = 0.0,
        skip_at_least: float = 0.0,
    ) -> None:
        require_numbers(loss_share=loss_share, cap=cap, keep_at_least=keep_at_least, skip_at_least=skip_at_least)
        if not 0 < loss_share <= 1:
            raise ValueError(f"loss_share must be in (0, 1], got {loss_share}")
        if not cap >= 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        if not 0 <= keep_at_least <= 1:
            raise ValueError(f"keep_at_least must be a share of the candidates in [0, 1], got {keep_at_least}")
        if not 0 <= skip_at_least < 1:
            raise ValueError(f"skip_at_least must be a share of the candidates in [0, 1), got {skip_at_least}")
        if keep_at_least + skip_at_least > 1:
            raise ValueError(
                f"keep_at_least={keep_at_least} and skip_at_least={skip_at_least} leave nothing to select: they are "
                "shares of the same candidates, so their sum must be at most 1"
            )
        self.loss_share, self.cap = loss_share, cap
        self.keep_at_least, self.skip_at_least = keep_at_least, skip_at_least
        self._why_all: str | None = None

    def keep_fraction(self, scores: Tensor) -> float:
        """Return the fraction of candidates that carry the share, which is the fraction kept."""
        ordered = functional.excess_loss(functional.descending(scores))
        return self._fraction_of(ordered[self._num_outliers(ordered) :])

    def _num_outliers(self, ordered: Tensor) -> int:
        return 0 if self.cap == float("inf") else int(functional.is_outlier(ordered, ordered=ordered).count_nonzero())

    def _fraction_of(self, ordered: Tensor) -> float:
        """The fraction to keep, or everything if too few could be left out."""
        fraction = functional.count_for_loss_share(ordered, self.loss_share, self.cap) / max(1, len(ordered))
        fraction = max(fraction, self.keep_at_least)
        if fraction <= 1 - self.skip_at_least:
            self._why_all = None
            return fraction
        self._why_all = (
            f"{fraction:.0%} of the examples carry {self.loss_share:.0%} of the loss. It skips examples when at most "
            f"{1 - self.skip_at_least:.0%} do: once more of them are fitted, or with a smaller skip_at_least="
        )
        return 1.0

    def explanation(self) -> str | None:
        return self._why_all

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        # Sorted only once, because an epoch may have millions of scores.
        ordered = functional.descending(scores)
        ordered_losses = functional.excess_loss(ordered)
        num_outliers = self._num_outliers(ordered_losses)
        fraction = self._fraction_of(ordered_losses[num_outliers:])
        if not num_outliers:
            count = round(fraction * len(scores))
            chosen, chances = functional.is_highest(scores, ordered[count - 1], count, generator)
        else:
            outliers = functional.is_outlier(functional.excess_loss(scores), ordered=ordered_losses)
            count = math.ceil(fraction * (len(scores) - num_outliers) - 1e-9)
            usual = scores.masked_fill(outliers, float("-inf"))
            chosen, chances = functional.is_highest(usual, ordered[num_outliers + count - 1], count, generator)
            chance = fraction if num_outliers <= max(1, len(scores) // 1000) else 1.0  # or they may be a rare class
            chances.masked_fill_(outliers, chance)
            chosen |= outliers & (torch.rand(len(scores), generator=generator, dtype=torch.float64) < chance)
        positions = chosen.nonzero().flatten()
        return Selection(positions, torch.ones(positions.shape), chances)
