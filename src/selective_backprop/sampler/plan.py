"""A plan: the ids that an epoch loads, decided at its start.

# K = ids to load
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from selective_backprop.sampler.id_batches import IdBatches, training_batch_sizes


@dataclass(frozen=True)
class Plan:
    """The ids that one rank loads in an epoch, in the order of the user's sampler."""

    ids: Tensor
    """(K,) int64: the ids to load."""
    weights: Tensor | None
    """(K,) float32: the weight of each id in the training loss; None if all are 1."""
    probabilities: Tensor | None
    """(K,) float64: the chance that each id had to be selected; None if all are 1."""
    num_offered: int
    """Number of this rank's candidates, skipped ones included."""
    counts: list[int]
    """K of every rank. They differ by one at most."""
    keeps_all: bool
    """Whether every rank loads each of its candidates once and with weight 1, as plain training does."""

    def batches(self, batch_size: int, *, drop_last: bool) -> IdBatches:
        """Cut the plan into training batches, equally many on every rank; see `training_batch_sizes`."""
        sizes = training_batch_sizes(len(self.ids), batch_size, drop_last=drop_last, counts=self.counts)
        count = int(sizes.sum())
        columns = (None if column is None else column[:count] for column in (self.weights, self.probabilities))
        return IdBatches(self.ids[:count], sizes, *columns)
