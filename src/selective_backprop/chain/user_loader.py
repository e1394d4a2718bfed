"""What the user's loader and its samplers say about an epoch: ids, sizes and random generators."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, SubsetRandomSampler

from selective_backprop.inference import preserved_rng
from selective_backprop.ranks import Ranks

_LONGEST_EPOCH = 2**22  # ids that an epoch may have of a smaller data set: collecting them takes seconds
_logger = logging.getLogger(__name__)
_TORCH = ("torch", "torchdata")
"""Packages whose loaders return batches in the order of indices."""


def has_ids(loader: Any) -> bool:
    """Whether the loader draws batches of indices from a map-style data set. Indices serve as ids."""
    if not isinstance(loader, DataLoader):
        return False
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def require_torchs_order(loader: Any) -> None:
    """Raise if the loader is a subclass of DataLoader that may return batches in another order than it asks for."""
    for name in ("__iter__", "_get_iterator"):
        if not _is_of_torch(loader, name):
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


def length_of(loader: Any) -> int | None:
    """Return the number of batches of an epoch; None if the loader has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def longest_epoch(num_examples: int) -> int:
    """Return how many ids an epoch may have at most. They are collected when it starts."""
    return max(_LONGEST_EPOCH, 4 * num_examples)


def num_candidates(loader: Any, keep: Tensor | None = None) -> int | None:
    """Return the most examples that an epoch of the loader offers; None if not known.

    keep: (M,) bool by id. Examples with False are pruned.
    """
    batches, size = length_of(loader), batch_size_of(loader)
    batch_sampler = getattr(loader, "batch_sampler", None)
    if not isinstance(batch_sampler, BatchSampler) or not _is_of_torch(batch_sampler):
        return batches * size if batches and size else None
    sampler = batch_sampler.sampler
    count = length_of(sampler)
    if count is None:
        return None
    each_once = isinstance(sampler, SequentialSampler | SubsetRandomSampler)
    if keep is not None and (each_once or getattr(sampler, "replacement", True) is False):
        rounds = -(-count // len(keep))  # a RandomSampler may go through the data set several times
        count = min(count, rounds * int(keep.sum()))
    return count - count % size if size and drops_last(loader) else count


def most_on_a_rank(
    loader: Any, keep: Tensor | None, ranks: Ranks, num_examples: int | None
) -> tuple[int | None, int | None]:
    """Return the candidate batches and the candidates of an epoch on the rank that has most; None if not known.

    Logs a line if every rank goes through the whole data set, as without a DistributedSampler. All ranks call this.

    Args:
        loader: the user's.
        keep: as for `num_candidates`.
        ranks: the ranks that train together.
        num_examples: M; None if the loader has no ids.
    """
    size, own = batch_size_of(loader), [length_of(loader), num_candidates(loader, keep)]
    shared = ranks.share([-1 if number is None else number for number in own])
    batches, candidates = (None if min(n) < 0 else int(max(n)) for n in zip(*shared, strict=True))
    if keep is not None and size and batches is not None and candidates is not None:
        batches = min(batches, candidates // size if drops_last(loader) else -(-candidates // size))
    # A lower bound. If each rank has its part of the data, it is below the size of the data set, even if padded.
    offered = sum((count - 1) * (size or 0) for count, _ in shared)
    if ranks.rank == 0 and ranks.size > 1 and num_examples and offered >= num_examples:
        _logger.warning(
            "each of the %d ranks goes through all %d examples, so an epoch offers every example %d times, as it would "
            "without selection. To divide them among ranks: DataLoader(data, sampler=DistributedSampler(data), ...)",
            ranks.size,
            num_examples,
            ranks.size,
        )
    return batches, num_examples if candidates is None else candidates


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
def untouched_generators(loader: Any) -> Iterator[None]:
    """Restore the states of the loader's generators, and of the global ones on the CPU, after the block."""
    states = [(generator, generator.get_state()) for generator in generators_of(generator_owners(loader))]
    try:
        with preserved_rng(torch.device("cpu")):
            yield
    finally:
        for generator, saved in states:
            generator.set_state(saved)


def _is_of_torch(value: Any, name: str = "__iter__") -> bool:
    """Whether a method of it is that of torch or torchdata. The user's own subclass may do anything."""
    module = getattr(getattr(type(value), name, None), "__module__", None) or ""
    return module.partition(".")[0] in _TORCH
