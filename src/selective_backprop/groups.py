"""Statistics of groups of examples, such as classes, domains or sources.

# M = data set
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selective_backprop.ledger import Ledger
from selective_backprop.losses import as_numbers
from selective_backprop.stats import quotient


@dataclass(frozen=True)
class GroupStats:
    """What is known about the examples of a group."""

    size: int
    """Number of examples."""
    mean_loss: float
    """Mean of the last training losses that are known; NaN if none is."""
    share_trained: float
    """How often the group's examples were trained on, as a fraction of how often they were offered; NaN at first."""


def checked_groups(groups: Tensor | Sequence[int] | None, num_examples: int) -> Tensor | None:
    """Return the groups as a tensor. Raises if there is not one whole number per example."""
    if groups is None:
        return None
    found = as_numbers(groups, "groups")
    if found.shape != (num_examples,) or found.is_floating_point():
        raise ValueError(
            f"groups must be one whole number per example, of shape ({num_examples},), got shape {tuple(found.shape)} "
            f"and type {found.dtype}"
        )
    return found.to("cpu", torch.int64)


def stats_by_group(groups: Tensor, ledger: Ledger) -> dict[int, GroupStats]:
    """Compute the statistics of each group. groups: (M,) the group of each example.

    >>> ledger = Ledger(3)
    >>> ledger.record_losses(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]), epoch=0)
    >>> stats_by_group(torch.tensor([7, 7, 8]), ledger)[7].mean_loss
    2.0
    """
    numbers, rows = torch.unique(groups, return_inverse=True)

    def total(values: Tensor) -> list[float]:
        sums = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, rows, values.double())
        return sums.tolist()

    columns = (torch.ones(len(groups)), ledger.loss.nan_to_num(0.0), ~ledger.loss.isnan(), ledger.selected)
    parts = zip(numbers.tolist(), *map(total, (*columns, ledger.offered)), strict=True)
    return {
        number: GroupStats(int(size), quotient(losses, known), quotient(trained, offered))
        for number, size, losses, known, trained, offered in parts
    }
