"""Notices whether the loss of an example says anything about its loss in the next epoch.

# P = examples that were trained on in two epochs in a row
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

_logger = logging.getLogger(__name__)

_SOME = 0.1  # correlation from which on the last loss says something. Real data had 0.16 or more
_BEYOND_CHANCE = 3  # in standard deviations, which are 1 / sqrt(P) for losses that say nothing
_MOST = 100_000  # examples that are looked at in an epoch


class MemoryCheck:
    """Warns once if losses are noise: an example above the median is not above it more often in the next epoch.

    This is so if a data set draws another example at every access, such as random pairs. The median is robust, and in
    place of ranks it takes little time. The check ends as soon as it is certain.

    >>> check = MemoryCheck()
    >>> check.learn(torch.arange(2000.0), torch.arange(2000.0) + 1)
    >>> check.is_over
    True
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether it is certain, either way."""
        self.state = [0.0, 0]
        """Sum of the correlations found so far, each times P, and the sum of P."""

    def learn(self, before: Tensor, after: Tensor) -> None:
        """Take note of examples that were trained on in two epochs in a row: (P,) their losses in both of them."""
        if self.is_over or len(before) < 2:
            return
        high = torch.stack([losses > losses.median() for losses in (before[:_MOST], after[:_MOST])])
        found = float(torch.corrcoef(high.float())[0, 1])
        if found != found:  # losses are all the same
            return
        self.state = [self.state[0] + found * high.shape[1], self.state[1] + high.shape[1]]
        correlation, chance = self.state[0] / self.state[1], _BEYOND_CHANCE / self.state[1] ** 0.5
        self.is_over = abs(correlation) > _SOME + chance or abs(correlation) < _SOME - chance
        if abs(correlation) < _SOME - chance:
            _logger.warning(
                "the ledger remembers noise: the loss of an example says nothing about its loss in the next epoch "
                "(correlation %.2f, of %d examples). Does your data set draw another example at every access, such as "
                "random pairs? Let an example follow from its index, or use a method with a selection pass, such as "
                "selective_backprop",
                correlation,
                self.state[1],
            )
