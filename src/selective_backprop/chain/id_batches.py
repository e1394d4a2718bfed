"""Batches of ids: what a DataLoader is asked to load, with what was decided about each id.

# n = ids, B = training batch
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.ranks import moves_to_even_out
from selective_backprop.step_losses import NO_IDS


class IdBatch(NamedTuple):
    """Ids that are loaded together."""

    ids: Tensor
    """(n,) int64."""
    weights: Tensor | None = None
    """(n,) float32: the weight of each id in the training loss; None if all are 1."""
    probabilities: Tensor | None = None
    """(n,) float64: the chance that each id had to be selected; None if all are 1."""

    def full(self) -> IdBatch:
        """Write out the ones."""
        size = len(self.ids)
        weights = torch.ones(size) if self.weights is None else self.weights
        chances = torch.ones(size, dtype=torch.float64) if self.probabilities is None else self.probabilities
        return IdBatch(self.ids, weights, chances)

    def part(self, rows: slice | Tensor) -> IdBatch:
        """Take some of the ids."""
        return IdBatch(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


def join(parts: list[IdBatch]) -> IdBatch:
    """Join batches of ids into one."""
    if len(parts) == 1:
        return parts[0]
    ids = torch.cat([NO_IDS, *(part.ids for part in parts)])
    none = [all(part[column] is None for part in parts) for column in (1, 2)]
    filled = [part.full() for part in parts]
    rest = (None if empty else torch.cat([p[c] for p in filled]) for c, empty in zip((1, 2), none, strict=True))  # type: ignore[misc]
    return IdBatch(ids, *rest)


@dataclass(frozen=True)
class IdBatches:
    """Consecutive batches of ids, stored as a few flat tensors: an epoch may have a million batches."""

    all: IdBatch
    """The ids of all batches, in order."""
    sizes: Tensor
    """int64: how many ids each batch has."""

    @staticmethod
    def of(batches: Iterable[Tensor]) -> IdBatches:
        """Join batches of ids about which nothing was decided.

        >>> IdBatches.of([torch.tensor([3, 1]), torch.tensor([2])]).ids.tolist()
        [3, 1, 2]
        """
        batches = list(batches)
        ids = torch.cat([NO_IDS, *batches])
        return IdBatches(IdBatch(ids), torch.tensor([len(batch) for batch in batches], dtype=torch.int64))

    @property
    def ids(self) -> Tensor:
        return self.all.ids

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
                for column in self.all
            ]
            yield map(IdBatch, *columns)
            begin = end

    def after(self, num_batches: int) -> IdBatches:
        """Leave out the first batches."""
        return IdBatches(self.all.part(slice(int(self.sizes[:num_batches].sum()), None)), self.sizes[num_batches:])

    def state_dict(self) -> dict[str, Any]:
        # clone: a slice would be saved with the whole tensor that it belongs to.
        columns = self.all._asdict() | {"sizes": self.sizes}
        return {name: None if column is None else column.clone() for name, column in columns.items()}

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> IdBatches:
        return IdBatches(IdBatch(state["ids"], state["weights"], state["probabilities"]), state["sizes"])


def evened(parts: list[IdBatch], num_ranks: int) -> list[IdBatch]:
    """Let all ranks have equally many ids, give or take one.

    Ids stay with the rank that drew them, but for those that leave from the end. parts: the ids of each rank; if they
    are not as many as there are ranks, all ids are divided anew.
    """
    if len(parts) != num_ranks:
        rows = torch.arange(sum(len(part.ids) for part in parts)).tensor_split(num_ranks)
        whole = join(parts)
        return [whole.part(own) for own in rows]
    counts, result = [len(part.ids) for part in parts], list(parts)
    moves = moves_to_even_out(counts) if max(counts) - min(counts) > 1 else []
    stay = [count - sum(n for giver, _, n in moves if giver == rank) for rank, count in enumerate(counts)]
    begin = list(stay)
    for giver, taker, count in moves:
        moved = parts[giver].part(slice(begin[giver], begin[giver] + count))
        result[taker], begin[giver] = join([result[taker], moved]), begin[giver] + count
    return [
        part.part(slice(kept)) if kept < count else part for part, kept, count in zip(result, stay, counts, strict=True)
    ]


def cut(parts: list[IdBatch], batch_size: int, *, drop_last: bool) -> list[IdBatches]:
    """Cut what each rank loads into training batches, equally many on all ranks; see `training_batch_sizes`."""
    counts, result = [len(part.ids) for part in parts], []
    for part, count in zip(parts, counts, strict=True):
        sizes = training_batch_sizes(count, batch_size, drop_last=drop_last, counts=counts)
        result.append(IdBatches(part.part(slice(int(sizes.sum()))), sizes))
    return result


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


def require_one_size(sizes: Tensor) -> None:
    """Raise if the user's batches differ in size: then nothing says how large training batches are to be.

    The last batch of an epoch may be smaller.
    """
    others = sizes[:-1][sizes[:-1] != sizes[0]] if len(sizes) else sizes
    if len(others) or (len(sizes) and sizes[-1] > sizes[0]):
        other = int(others[0]) if len(others) else int(sizes[-1])
        raise ValueError(
            f"your loader's batches differ in size, such as {int(sizes[0])} and {other} examples, so it is not known "
            "how large training batches are to be: pass batch_size=, a number of examples, or batch_tokens= to "
            "SelectiveLoader"
        )
