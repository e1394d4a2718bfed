"""The index stream: a batch sampler that stands between the user's batch sampler and the DataLoader.

It decides which ids are loaded together, and knows the ids of every batch that the DataLoader returns.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from selective_backprop.loader.sampler_place import BatchesWithPlace
from selective_backprop.loader.tagging import TORCH, overrides, untag, with_tags


@dataclass(frozen=True)
class Chunk:
    """Ids that are loaded together, and what was decided about them before loading."""

    ids: Tensor
    """(n,) int64: the ids to load."""
    offered: Tensor
    """`ids` and the ids that were skipped since the chunk before; in the last chunk also those skipped after it."""
    fraction: float
    """Fraction of the epoch's candidates offered, this chunk included."""
    decided: Tensor | None = None
    """(n,) bool: whether each id is selected already; the others must be scored. None if no id is decided about."""
    weights: Tensor | None = None
    """(n,) weights of the ids that are selected already."""
    probabilities: Tensor | None = None
    """(n,) selection probabilities of the ids that are selected already."""
    num_waiting: int = 0
    """Number of ids that were skipped because they already wait in the queue."""


@dataclass(frozen=True)
class IdBlock:
    """Consecutive candidate batches of an epoch."""

    ids: Tensor
    """(n,) int64: the ids of all these batches, in order."""
    sizes: Tensor
    """int64: how many ids each batch has."""

    @staticmethod
    def of(batches: list[Tensor]) -> IdBlock:
        """Make a block of batches of ids, of any integer type."""
        return IdBlock(torch.cat(batches).to(torch.int64), torch.tensor([ids.numel() for ids in batches]))

    @staticmethod
    def join(blocks: list[IdBlock]) -> IdBlock:
        nothing = torch.empty(0, dtype=torch.int64)
        columns = [block.ids for block in blocks], [block.sizes for block in blocks]
        return IdBlock(*(torch.cat([nothing, *column]) for column in columns))

    def cut(self, num_batches: int) -> tuple[IdBlock, IdBlock]:
        """Split after `num_batches` batches."""
        end = int(self.sizes[:num_batches].sum())
        return IdBlock(self.ids[:end], self.sizes[:num_batches]), IdBlock(self.ids[end:], self.sizes[num_batches:])


class IndexStream:
    """A batch sampler that remembers which chunks it handed out, so that the ids of each loaded batch are known.

    A DataLoader with workers asks for indices ahead of time, but returns batches in the order of asking.

    Args:
        batch_sampler: the user's batch sampler. Its attributes can be read here too, as subclasses of DataLoader do.
        num_examples: size of the data set. Ids must be below it.
        loader_name: the name of the DataLoader's class, for errors.
    """

    def __init__(self, batch_sampler: Any, num_examples: int, loader_name: str) -> None:
        self.batch_sampler = batch_sampler
        self._loader_name = loader_name
        self._num_examples = num_examples
        self.places: BatchesWithPlace | None = None
        """Goes through the batch sampler instead of it, if an epoch is too long to save the ids that are left."""
        self.tail = torch.empty(0, dtype=torch.int64)  # ids after the last chunk, all of them skipped
        self.tail_waiting = 0  # how many of these already wait in the queue
        self._source: Iterator[Chunk] = iter(())
        # Chunks whose batches have not been returned yet, by id(), in the order of asking.
        self._handed_out: dict[int, Chunk] = {}
        # A user's DataLoader may read ahead in a thread, which asks for chunks while the main thread takes others.
        self._lock = threading.RLock()
        self.asked: deque[Chunk] = deque()
        """If batches are tagged: chunks that the DataLoader's newest iterator asked for and has not returned yet."""
        self.tags = False
        """Whether batches carry a tag with their chunk, because they may come in another order."""
        self._fraction = 0.0
        self.in_order = True
        """Whether the batches of this epoch came back in the order of asking, each once."""

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        # The user's sampler must seem to have no state here: StatefulDataLoader would save and restore it beside ours.
        if name == "batch_sampler" or name.startswith("__") or name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def begin(self, chunks: Iterator[Chunk]) -> None:
        """Hand out these chunks in the next iteration. Until then nothing is drawn from the user's sampler."""
        self._source, self._handed_out, self._fraction, self.in_order = chunks, {}, 0.0, True

    def __iter__(self) -> Iterator[list[int]]:
        self.asked = deque()
        return self._hand_out(self.asked)

    def _hand_out(self, asked: deque[Chunk]) -> Iterator[list[int]]:
        while (chunk := self._next_chunk()) is not None:
            if self.tags:
                asked.append(chunk)
            yield chunk.ids.tolist()

    def _next_chunk(self) -> Chunk | None:
        with self._lock:
            chunk = next(self._source, None)  # not a for loop: remaining() replaces the source within an epoch
            if chunk is not None:
                self._handed_out[id(chunk)] = chunk
            return chunk

    def batches(self, *, check: bool = True) -> Iterator[Tensor]:
        """Yield the user's batches of ids for one epoch.

        check: refuse ids outside the data set and convert to int64. If False, the caller does both, for many at once.
            It takes the whole epoch then, so no place is kept.
        """
        for indices in self.places if check and self.places is not None else self.batch_sampler:
            try:
                # numpy reads a list in a quarter of the time that torch takes.
                ids = torch.from_numpy(numpy.asarray(indices)) if type(indices) is list else torch.as_tensor(indices)
            except (TypeError, ValueError):
                ids = torch.empty(0)
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"your sampler must yield integer indices, which serve as ids; got {indices!r:.200}")
            if check:
                ids = ids.to(torch.int64)
                self.require_known(ids)
            yield ids

    def joined_batches(self) -> Iterator[IdBlock]:
        """Yield the user's batches in blocks: converting and checking them one by one would take seconds."""
        for block in joined(self.batches(check=False)):
            self.require_known(block.ids)
            yield block

    def require_known(self, ids: Tensor) -> None:
        """Raise if an id is outside the data set."""
        if ids.numel():
            lowest, highest = torch.aminmax(ids)
            if not 0 <= int(lowest) <= int(highest) < self._num_examples:
                self._refuse(ids)

    def _refuse(self, ids: Tensor) -> None:
        wrong = ids[(ids < 0) | (ids >= self._num_examples)]
        shown = ", ".join(map(str, wrong[:5].tolist())) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"the sampler yields the indices {shown}, but the data set had {self._num_examples} examples when the "
            f"SelectiveLoader was made: indices serve as ids and must be from 0 to {self._num_examples - 1}. Do not "
            "use negative indices, and make a new SelectiveLoader when the data set has grown"
        )

    def take(self, batch: Any) -> tuple[Chunk, Any]:
        """Find the chunk of a batch that the DataLoader has just returned. Returns it and the batch without tags."""
        with self._lock:
            oldest = next(iter(self._handed_out), None)
        if not self.tags:
            assert oldest is not None
            return self._handed_out.pop(oldest), batch
        batch, chunks = untag(batch)
        chunk = self._handed_out.pop(id(chunks[0]), None) if len(chunks) == 1 else None
        if chunk is None:
            raise ValueError(
                f"{self._loader_name}.__iter__, which is not torch's, returned {_unknown(chunks)}{_ADVICE}"
            )
        if id(chunk) != oldest:
            self.in_order = False
        self._fraction = max(self._fraction, chunk.fraction)  # it must never fall, even if batches come out of order
        return replace(chunk, fraction=self._fraction), batch

    @property
    def handed_out(self) -> list[Chunk]:
        """The chunks that were asked for and whose batches have not been returned yet."""
        return list(self._handed_out.values())

    def remaining(self) -> list[Chunk]:
        """List the chunks of this epoch whose batches have not been returned yet."""
        with self._lock:
            rest = list(self._source)
            self._source = iter(rest)
            return [*self._handed_out.values(), *rest]


_ADVICE = (
    ": SelectiveLoader could not know which examples are in a batch. Pass torch's DataLoader itself: "
    "persistent_workers=True keeps its workers from epoch to epoch, pin_memory=True lets copies to the device overlap, "
    "and SelectiveLoader moves batches to the device and takes augmentation there as transform="
)


def _unknown(chunks: list[Chunk]) -> str:
    if not chunks:
        return "a batch without a tensor that super().__iter__() loaded for this epoch"
    if len(chunks) > 1:
        return f"a batch that mixes {len(chunks)} batches"
    return "a batch for the second time, or one that was loaded for an earlier epoch"


def contained(ids: Tensor, values: Tensor) -> Tensor:
    """Return (n,) bool: whether each id is among the values. There must be at least one value, in rising order.

    >>> contained(torch.tensor([5, 2, 9]), torch.tensor([2, 9])).tolist()
    [False, True, True]
    """
    # torch.isin sorts both. This takes half the time, because the values are sorted once per epoch.
    return values[torch.searchsorted(values, ids).clamp_(max=len(values) - 1)] == ids


def joined(batches: Iterable[Tensor], num_ids: int = 2**15) -> Iterator[IdBlock]:
    """Join batches of ids into blocks of `num_ids` ids or a few more.

    >>> [block.ids.tolist() for block in joined(torch.arange(5).split(2), num_ids=3)]
    [[0, 1, 2, 3], [4]]
    """
    waiting: list[Tensor] = []
    count = 0
    for ids in batches:
        waiting.append(ids)
        count += ids.numel()
        if count >= num_ids:
            yield IdBlock.of(waiting)
            waiting, count = [], 0
    if waiting:
        yield IdBlock.of(waiting)


def unless_waiting(batches: Iterator[tuple[Tensor, float]], waiting: Tensor, stream: IndexStream) -> Iterator[Chunk]:
    """Leave out ids that already wait in the queue from the user's batches. These count as offered and skipped.

    Args:
        batches: batches of ids, with the fraction of the epoch at the end of each.
        waiting: rising ids that wait.
        stream: gets the ids that are skipped after the last chunk, as its tail.
    """
    skipped: list[Tensor] = []  # batches with nothing left to load
    for ids, fraction in batches:
        waits = contained(ids, waiting)
        if not skipped and not waits.any():  # the usual case in a large data set
            yield Chunk(ids, ids, fraction)
            continue
        left = ids[~waits]
        if not len(left):
            skipped.append(ids)
            continue
        offered = torch.cat([*skipped, ids]) if skipped else ids
        yield Chunk(left, offered, fraction, num_waiting=len(offered) - len(left))
        skipped = []
    stream.tail = torch.cat([stream.tail[:0], *skipped])
    stream.tail_waiting = len(stream.tail)


def offers_the_same_each_epoch(loader: Any) -> bool:
    """Whether every epoch of a DataLoader is known to have the same ids, each once."""
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in (SequentialSampler, SubsetRandomSampler, DistributedSampler)


def has_ids(loader: Any) -> bool:
    """Whether the loader draws batches of indices from a map-style data set."""
    if not isinstance(loader, DataLoader):
        return False
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def with_index_stream(loader: Any) -> tuple[DataLoader[Any], IndexStream]:
    """Copy the user's DataLoader, keeping its class, and let the copy take its indices from an IndexStream."""
    if overrides(type(loader), "_get_iterator"):
        raise ValueError(
            f"{type(loader).__name__} replaces the iterator of torch's DataLoader by one of its own (_get_iterator), "
            f"which may return batches in any order{_ADVICE}"
        )
    stream = IndexStream(loader.batch_sampler, len(loader.dataset), type(loader).__name__)
    clone = copy.copy(loader)
    # A DataLoader does not let these be set after construction, so that nobody changes a loader in use. The copy is not
    # in use yet. in_order, because batches that come out of order could not be matched with their ids.
    clone.__dict__.update(batch_sampler=stream, _iterator=None, in_order=True)
    if overrides(type(loader), "__iter__"):
        object.__setattr__(clone, "__class__", with_tags(type(loader)))
        stream.tags = True
    return clone, stream


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
    return module.partition(".")[0] in TORCH


def chunks_to_state(chunks: list[Chunk]) -> dict[str, Any]:
    """Save chunks as a few flat tensors instead of thousands of small ones."""
    nothing = torch.empty(0, dtype=torch.int64)
    state: dict[str, Any] = {
        "ids": torch.cat([nothing, *(chunk.ids for chunk in chunks)]),
        "sizes": [len(chunk.ids) for chunk in chunks],
        "offered": torch.cat([nothing, *(chunk.offered for chunk in chunks)]),
        "offered_sizes": [len(chunk.offered) for chunk in chunks],
        "fractions": [chunk.fraction for chunk in chunks],
        "num_waiting": [chunk.num_waiting for chunk in chunks],
        "decided": None,
    }
    if chunks and chunks[0].decided is not None:
        for name in ("decided", "weights", "probabilities"):
            state[name] = torch.cat([getattr(chunk, name) for chunk in chunks])
    return state


def chunks_from_state(state: dict[str, Any]) -> list[Chunk]:
    """Read chunks that `chunks_to_state` saved."""
    ids = state["ids"].split(state["sizes"])
    offered = state["offered"].split(state["offered_sizes"])
    extra: list[Any] = [[None] * len(ids)] * 3
    if state["decided"] is not None:
        extra = [state[name].split(state["sizes"]) for name in ("decided", "weights", "probabilities")]
    columns = [ids, offered, state["fractions"], *extra, state["num_waiting"]]
    return [Chunk(*parts) for parts in zip(*columns, strict=True)]
