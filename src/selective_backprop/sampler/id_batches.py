"""Batches of ids: what a DataLoader is asked to load, with what was decided about each id.

# n = ids, B = training batch
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NO_IDS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class IdBatch:
    """Ids that are loaded together."""

    ids: Tensor
    """(n,) int64."""
    weights: Tensor | None = None
    """(n,) float32: the weight of each id in the training loss; None if all are 1."""
    probabilities: Tensor | None = None
    """(n,) float64: the chance that each id had to be selected; None if all are 1."""


@dataclass(frozen=True)
class IdBatches:
    """Consecutive batches of ids, stored as a few flat tensors: an epoch may have a million batches."""

    ids: Tensor
    """(n,) int64: the ids of all batches, in order."""
    sizes: Tensor
    """int64: how many ids each batch has."""
    weights: Tensor | None = None
    """(n,) as in `IdBatch`."""
    probabilities: Tensor | None = None
    """(n,) as in `IdBatch`."""

    @staticmethod
    def of(batches: Iterable[Tensor]) -> IdBatches:
        """Join batches of ids, of any integer type, about which nothing was decided.

        >>> IdBatches.of([torch.tensor([3, 1]), torch.tensor([2])]).ids.tolist()
        [3, 1, 2]
        """
        batches = list(batches)
        return IdBatches(torch.cat([NO_IDS, *batches]), torch.tensor([len(ids) for ids in batches], dtype=torch.int64))

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[IdBatch]:
        return itertools.chain.from_iterable(self._pieces())

    def _pieces(self) -> Iterator[Iterator[IdBatch]]:
        # Batches are split in groups: slicing them one by one takes four times as long, all at once takes much memory.
        begin = 0
        for sizes in torch.split(self.sizes, 1024):
            end = begin + int(sizes.sum())
            columns = [
                [None] * len(sizes) if column is None else torch.split(column[begin:end], sizes.tolist())
                for column in (self.ids, self.weights, self.probabilities)
            ]
            yield map(IdBatch, *columns)
            begin = end

    def after(self, num_batches: int) -> IdBatches:
        """Leave out the first batches."""
        begin = int(self.sizes[:num_batches].sum())
        columns = (None if column is None else column[begin:] for column in (self.weights, self.probabilities))
        return IdBatches(self.ids[begin:], self.sizes[num_batches:], *columns)

    @staticmethod
    def join(batches: list[IdBatch]) -> IdBatches:
        """Store these batches flat."""
        flat = IdBatches.of(batch.ids for batch in batches)
        sizes = flat.sizes.tolist()
        weights = join_columns([batch.weights for batch in batches], sizes, torch.float32)
        chances = join_columns([batch.probabilities for batch in batches], sizes, torch.float64)
        return IdBatches(flat.ids, flat.sizes, weights, chances)

    def state_dict(self) -> dict[str, Any]:
        # clone: a slice would be saved with the whole tensor that it belongs to.
        columns = {name: getattr(self, name) for name in ("ids", "sizes", "weights", "probabilities")}
        return {name: None if column is None else column.clone() for name, column in columns.items()}

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> IdBatches:
        return IdBatches(**state)


def join_columns(columns: list[Tensor | None], sizes: list[int], dtype: torch.dtype) -> Tensor | None:
    """Join columns, where None stands for ones. If all columns are None, so is the result."""
    if all(column is None for column in columns):
        return None
    return torch.cat([ones_if_none(column, size, dtype) for column, size in zip(columns, sizes, strict=True)])


def ones_if_none(column: Tensor | None, size: int, dtype: torch.dtype) -> Tensor:
    """Return the column itself, or ones in its place."""
    return torch.ones(size, dtype=dtype) if column is None else column


def training_batch_sizes(count: int, batch_size: int, *, drop_last: bool, counts: list[int] | None = None) -> Tensor:
    """Cut `count` examples into batches of B. The last two share what does not fill a batch: none is below half of B.

    With drop_last it is left out instead. If ranks have different counts, all of them cut as many batches as the rank
    with the most needs, and cut them alike; counts may differ by one. An example is left out if other ranks would have
    none for the same batch.

    Args:
        count: number of examples of this rank.
        batch_size: B.
        drop_last: leave out what does not fill a batch.
        counts: number of examples of each rank; None for a single rank.

    >>> training_batch_sizes(11, 4, drop_last=False).tolist(), training_batch_sizes(9, 4, drop_last=False).tolist()
    ([4, 4, 3], [4, 3, 2])
    >>> training_batch_sizes(11, 4, drop_last=True).tolist(), training_batch_sizes(3, 4, drop_last=False).tolist()
    ([4, 4], [3])
    >>> [training_batch_sizes(count, 4, drop_last=False, counts=[9, 8]).tolist() for count in (9, 8)]
    [[4, 3, 2], [4, 2, 2]]
    """
    most, fewest = (count, count) if counts is None else (max(counts), min(counts))
    if batch_size == 1 or fewest == 0:
        most = count = fewest  # the last batch would be empty on some ranks
    full, rest = divmod(most, batch_size)
    number = full + (rest > 0 and not drop_last)
    if not number:
        return NO_IDS
    count = min(count, number * batch_size)
    sizes = torch.full((number,), batch_size)
    before = batch_size * max(0, number - 2)
    left, enough = count - before, batch_size + (batch_size + 1) // 2
    if number == 1:
        sizes[-1] = left
    elif left >= enough and most - before > enough:  # so ranks that differ by one example decide alike
        sizes[-1] = left - batch_size  # the last batch alone is at least half full
    else:
        sizes[-2:] = torch.tensor([left - left // 2, left // 2])
    return sizes
