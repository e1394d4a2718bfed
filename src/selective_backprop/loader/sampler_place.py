"""The place in a sampler of very many indices: saved, and found again without drawing the indices that are gone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from selective_backprop.loader.tagging import TORCH

_BLOCK = 32  # indices that torch's RandomSampler draws at a time, with replacement


class BatchesWithPlace:
    """Iterates over a batch sampler's batches of indices. Its place can be saved between two of them.

    Make one by `batches_with_place`. The batches are those of the batch sampler itself.

    >>> batches = batches_with_place(BatchSampler(SequentialSampler(range(10**10)), 4, drop_last=False))
    >>> next(iter(batches)), next(batches)
    ([0, 1, 2, 3], [4, 5, 6, 7])
    >>> again = batches_with_place(BatchSampler(SequentialSampler(range(10**10)), 4, drop_last=False))
    >>> again.load_state_dict(batches.state_dict())
    >>> next(iter(again)), again.count
    ([8, 9, 10, 11], 3)
    """

    def __init__(self, indices: Any, batch_size: int | None, *, drop_last: bool = False) -> None:
        self._indices = indices  # yields indices, or without batch_size batches of them
        self._batch_size, self._drop_last = batch_size, drop_last
        self._iterator: Iterator[Any] = iter(())
        self._loaded: dict[str, Any] | None = None  # where the next iteration begins
        self.count = 0
        """Number of batches drawn in this epoch."""

    def __iter__(self) -> BatchesWithPlace:
        loaded, self._loaded = self._loaded, None
        self.count = 0
        if loaded is not None:
            self._indices.load_state_dict(loaded["sampler"])
            self.count = loaded["count"]
        self._iterator = iter(self._indices)
        return self

    def reset(self) -> None:
        """Forget the place. The next iteration begins an epoch."""
        self.count, self._loaded = 0, None

    def __next__(self) -> Any:
        if self._batch_size is None:
            batch = next(self._iterator)
        else:
            batch = list(itertools.islice(self._iterator, self._batch_size))
            if not batch or (self._drop_last and len(batch) < self._batch_size):
                raise StopIteration
        self.count += 1
        return batch

    def state_dict(self) -> dict[str, Any] | None:
        """Return the place; None if no batch has been drawn."""
        if self._loaded is not None:
            return self._loaded
        return {"count": self.count, "sampler": self._indices.state_dict()} if self.count else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next iteration at this place."""
        self._loaded = state


def batches_with_place(batch_sampler: Any) -> BatchesWithPlace | None:
    """Make an iterator with a place of torch's own samplers, or of one with a state_dict; None for any other."""
    if _has_state(batch_sampler):
        return BatchesWithPlace(batch_sampler, None)
    if not isinstance(batch_sampler, BatchSampler) or not _is_of_torch(batch_sampler):
        return None
    sampler: Any = batch_sampler.sampler
    indices: Any = None
    if _has_state(sampler):
        indices = sampler
    elif isinstance(sampler, RandomSampler) and type(sampler).__iter__ is RandomSampler.__iter__:
        indices = _Random(sampler)
    elif isinstance(sampler, SequentialSampler) and type(sampler).__iter__ is SequentialSampler.__iter__:
        indices = _Sequential(sampler)
    if indices is None:
        return None
    return BatchesWithPlace(indices, batch_sampler.batch_size, drop_last=batch_sampler.drop_last)


def _is_of_torch(sampler: Any) -> bool:
    """Whether its __iter__ is that of torch or torchdata."""
    return type(sampler).__iter__.__module__.partition(".")[0] in TORCH


def _has_state(sampler: Any) -> bool:
    return callable(getattr(sampler, "state_dict", None)) and callable(getattr(sampler, "load_state_dict", None))


class _Sequential:
    """The indices of torch's SequentialSampler."""

    def __init__(self, sampler: SequentialSampler) -> None:
        self._sampler, self._place, self._start = sampler, 0, 0

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        for index in range(start, len(self._sampler)):
            self._place = index + 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = self._place = state["place"]


class _Random:
    """The indices of torch's RandomSampler, drawn from the same generator in the same blocks.

    A place is the generator's state before the current block, and how many of the block's indices are gone.
    """

    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler = sampler
        self._loaded: dict[str, Any] | None = None
        self._before = torch.empty(0)  # the generator's state before the current block
        self._block = 0  # number of the current block
        self._used = 0  # how many of its indices are gone

    def __iter__(self) -> Iterator[int]:
        loaded, self._loaded = self._loaded, None
        own = self._sampler.generator
        generator = torch.Generator() if own is None else own
        if loaded is None and own is None:
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        first, used = (0, 0) if loaded is None else (loaded["block"], loaded["used"])
        for number in range(first, self._num_whole + 1):
            self._block, drawing = number, generator
            if loaded is not None:
                # The user's generator has been restored to where it was when the place was saved, after this block.
                drawing = generator if own is None else torch.Generator()
                drawing.set_state(loaded["before"])
            self._before = drawing.get_state()
            block = self._draw(drawing)
            for place in range(used, len(block)):
                self._used = place + 1
                yield block[place]
            loaded, used = None, 0

    @property
    def _size(self) -> int:
        return _BLOCK if self._sampler.replacement else len(self._sampler.data_source)

    @property
    def _num_whole(self) -> int:
        """Number of whole blocks. One shorter block, which may be empty, comes after them."""
        return self._sampler.num_samples // self._size

    def _draw(self, generator: torch.Generator) -> list[int]:
        num_examples = len(self._sampler.data_source)
        size = self._size if self._block < self._num_whole else self._sampler.num_samples % self._size
        if self._sampler.replacement:
            drawn = torch.randint(high=num_examples, size=(size,), dtype=torch.int64, generator=generator)
        else:
            drawn = torch.randperm(num_examples, generator=generator)[:size]
        return drawn.tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"before": self._before, "block": self._block, "used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = dict(state)
