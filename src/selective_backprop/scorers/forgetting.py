"""Notices whether examples that are left out are forgotten.

# P = examples that came back
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from selective_backprop.options import require_numbers

_logger = logging.getLogger(__name__)

_FEWEST = 30  # examples that came back, before their median counts
_EPOCHS = 3  # the median is over those that came back in the last epochs
_MIX = 0x9E3779B1  # odd, and near 2**32 / golden ratio: products of neighbouring ids are far apart


class ForgettingCheck:
    """Compares the losses of examples that were left out and came back with their losses before.

    A low loss can have two reasons. If the network has learned what examples have in common, an example keeps its low
    loss while only others are trained on: it may be left out. If the network has memorised the example, its loss rises
    while it is left out, and leaving it out does harm. The median over examples that came back tells which. It is over
    those of the last three epochs, and counts from 30 examples on.

    Args:
        most_rise: by how much the loss of the median example may rise, as a share of the mean loss of the easiest 95%
            of all examples. The hardest do not count, because broken ones would hide any rise.

    >>> check = ForgettingCheck(most_rise=0.1)
    >>> check.learn(before=torch.full((30,), 0.02), after=torch.full((30,), 0.03), mean=0.5)
    >>> check.forgets
    False
    >>> check.learn(before=torch.full((40,), 0.02), after=torch.full((40,), 0.2), mean=0.5)
    >>> check.forgets
    True
    """

    def __init__(self, most_rise: float) -> None:
        require_numbers(most_rise=most_rise)
        if not most_rise > 0:  # also if it is NaN
            raise ValueError(f"most_rise must be a share of the mean loss above 0, got {most_rise}")
        self.most_rise = most_rise
        self.forgets = False
        """Whether examples were found to be forgotten. This is final: nothing is left out from then on."""
        self._rises: list[Tensor] = []

    def learn(self, before: Tensor, after: Tensor, mean: float) -> None:
        """Take note of examples that came back in the latest epoch. Must be called once before every epoch.

        Args:
            before: (P,) their losses before they were left out.
            after: (P,) their losses now.
            mean: the mean loss of the easiest examples, counted from the smallest loss.
        """
        if self.forgets or not mean > 0:
            return
        self._rises = [*self._rises, (after - before) / mean][-_EPOCHS:]
        rises = torch.cat(self._rises)
        if len(rises) >= _FEWEST and (median := float(rises.median())) > self.most_rise:
            self.forgets, self._rises = True, []
            _logger.warning(
                "everything is trained on from here on: the loss of examples that were left out rose by %.2f of the "
                "mean loss of the easiest 95%% (median of %d; above most_rise=%g), so the network forgets what it does "
                "not see",
                median,
                len(rises),
                self.most_rise,
            )

    def explanation(self) -> str | None:
        """Say why nothing is left out any more, if that is so."""
        return f"the loss of examples that were left out rose (most_rise={self.most_rise:g})" if self.forgets else None

    def state_dict(self) -> dict[str, Any]:
        return {"forgets": self.forgets, "rises": list(self._rises)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.forgets, self._rises = state["forgets"], list(state["rises"])


def comes_back(ids: Tensor, epoch: int) -> Tensor:
    """Whether it is the turn of each example to be trained on in any case, so that its loss is known again.

    In every epoch it is the turn of a hundredth of all, or of about 200 if that is more, but of a tenth at most.

    >>> [int(comes_back(torch.arange(size), epoch=3).sum()) for size in (100, 5_000, 100_000)]
    [10, 197, 991]
    """
    period = min(100, max(10, len(ids) // 200))
    return ((ids * _MIX & 0xFFFFFFFF) >> 9) % period == epoch % period
