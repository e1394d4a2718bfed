"""What the user's DataLoader and its samplers say about an epoch: sizes, order and random generators."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

_TORCH = ("torch", "torchdata")
"""Packages whose loaders return batches in the order of indices."""
_FIRST_BATCHES = 16  # if these have one size, it is that of training batches, and others are exceptions

_logger = logging.getLogger(__name__)


class SizeCheck:
    """Checks that the user's batches have one size, if nothing else says how large training batches are to be.

    The last batch of an epoch may be smaller. Batches of many sizes, such as those by tokens, are found among the first
    ones of the run, and are an error: which of them comes first would decide. Later exceptions, such as the last batch
    of each worker, are logged once.

    Args:
        first: the size of the run's first batch, if it was before a resume; then others are logged.
    """

    def __init__(self, first: int | None = None) -> None:
        self._first = first
        self._other: int | None = None  # the size of the last batch, if it is another one
        self._num_batches = 0 if first is None else _FIRST_BATCHES

    def begin_epoch(self) -> None:
        """An epoch begins: what came before was the last batch of another one."""
        self._other = None

    def __call__(self, size: int) -> None:
        """Take note of the size of the next batch."""
        if self._num_batches < 0:  # logged already
            return
        self._num_batches += 1
        if self._first is None:
            self._first = size
        if self._other is None and size < self._first:
            self._other = size
        elif self._other is not None or size > self._first:
            other = size if self._other is None else self._other
            if self._num_batches <= _FIRST_BATCHES:
                raise ValueError(
                    f"your loader's batches differ in size, such as {self._first} and {other} examples, so it is not "
                    "known how large training batches are to be: pass batch_size=, a number of examples, or "
                    "batch_tokens= to SelectiveLoader"
                )
            _logger.warning(
                "your loader's batches differ in size, such as %d and %d examples, so training batches have %d: for "
                "another size, pass batch_size=, a number of examples, or batch_tokens= to SelectiveLoader",
                self._first,
                other,
                self._first,
            )
            self._num_batches = -1


def has_ids(loader: Any) -> bool:
    """Whether the loader draws batches of indices from a map-style data set."""
    if not isinstance(loader, DataLoader):
        return False
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def require_torchs_order(loader: Any) -> None:
    """Raise if the loader is a subclass of DataLoader that may return batches in another order than it asks for."""
    for name in ("__iter__", "_get_iterator"):
        method = getattr(type(loader), name, None)
        if (getattr(method, "__module__", None) or "").partition(".")[0] not in _TORCH:
            raise ValueError(
                f"{type(loader).__name__} has its own {name}, so it is not known which examples its batches hold. Pass "
                "torch's DataLoader itself; SelectiveLoader moves batches to the device and takes augmentation there "
                "as transform=. Or give your loader sampler=sb.SelectiveSampler(...), which works in any loop"
            )


def batch_size_of(loader: Any) -> int | None:
    """Return the size of the batches; None if neither the loader nor its batch sampler says it."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None


def drops_last(loader: Any) -> bool:
    """Whether the loader leaves out a last batch that is not full."""
    return any(bool(getattr(owner, "drop_last", False)) for owner in (loader, getattr(loader, "batch_sampler", None)))


def num_candidates(loader: Any) -> int | None:
    """Return how many examples an epoch of the loader offers, or slightly more than that; None if not known."""
    sampler, size = _index_sampler(loader), batch_size_of(loader)
    try:
        if sampler is not None:
            count = len(sampler)
            return count - count % size if size and drops_last(loader) else count
        return len(loader) * size if size else None
    except TypeError:
        return None


def most_kept(loader: Any, keep: Tensor) -> int | None:
    """Return the most examples that an epoch can offer without those whose keep[id] is False; None if not known.

    The number is exact for torch's samplers that draw each id once. Nothing is drawn to find out.
    """
    sampler, count = _index_sampler(loader), int(keep.sum())
    if sampler is None or not _is_of_torch(sampler):
        return num_candidates(loader)
    if isinstance(sampler, SubsetRandomSampler):
        ids = torch.as_tensor(sampler.indices, dtype=torch.int64)
        return int(keep[ids[(ids >= 0) & (ids < len(keep))]].sum())
    if isinstance(sampler, DistributedSampler):
        repeated = max(0, sampler.total_size - len(keep))  # examples repeated so that all ranks have equally many
        return min(len(sampler), count + repeated)
    draws_each_once = isinstance(sampler, SequentialSampler) or getattr(sampler, "replacement", True) is False
    if draws_each_once and len(getattr(sampler, "data_source", ())) == len(keep):
        rounds, rest = divmod(len(sampler), len(keep))
        return rounds * count + min(rest, count)
    return num_candidates(loader)


def generator_owners(loader: Any) -> list[Any]:
    """List the loader and the samplers that own a random generator, which decides the order or worker seeds."""
    found, seen = [], set()
    owners = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    while owners:
        owner = owners.pop(0)
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(getattr(owner, "generator", None), torch.Generator):
            found.append(owner)
        # Samplers may hold samplers, such as a BatchSampler that the user gave to the DataLoader.
        owners += [value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, Sampler)]
    return found


def generators_of(owners: list[Any]) -> list[torch.Generator]:
    """List the generators of these owners, each once."""
    return list({id(owner.generator): owner.generator for owner in owners}.values())


@contextmanager
def untouched_generators(owners: list[Any]) -> Iterator[None]:
    """Restore the states of the owners' generators after the block."""
    states = [(generator, generator.get_state()) for generator in generators_of(owners)]
    try:
        yield
    finally:
        for generator, saved in states:
            generator.set_state(saved)


def _index_sampler(loader: Any) -> Any:
    """Return the sampler that yields indices one by one; None unless torch's own BatchSampler groups them."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return batch_sampler.sampler if isinstance(batch_sampler, BatchSampler) and _is_of_torch(batch_sampler) else None


def _is_of_torch(value: Any) -> bool:
    """Whether its __iter__ is that of torch or torchdata. The user's own subclass may iterate in any way."""
    module = getattr(getattr(type(value), "__iter__", None), "__module__", None) or ""
    return module.partition(".")[0] in _TORCH
