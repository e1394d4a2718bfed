"""Source: reads batches and their ids from the user's loader, and can resume in the middle of an epoch."""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from selective_backprop.inference import preserved_rng, random_states, set_random_states
from selective_backprop.loader.index_stream import (
    Chunk,
    IdBlock,
    IndexStream,
    batch_size_of,
    chunks_from_state,
    chunks_to_state,
    drops_last,
    generator_owners,
    generators_of,
    has_ids,
    joined,
    most_kept,
    num_candidates,
    offers_the_same_each_epoch,
    unless_waiting,
    untouched_generators,
    with_index_stream,
)
from selective_backprop.loader.sampler_place import batches_with_place

_NO_BATCH = object()
_logger = logging.getLogger(__name__)
_LONGEST_PLAN = (
    2**22
)  # indices per epoch that a plan may have, if the data set is smaller; they take seconds to collect
_LONGEST_UNKNOWN = 2**20  # the same for a batch sampler without a length: one without an end is refused after a second
_NO_IDS = torch.empty(0, dtype=torch.int64)
Plan = Callable[[Iterable[IdBlock]], tuple[Iterable[Chunk], Tensor, int]]
"""A function from an epoch's ids to its plan, as `plan_epoch` returns it: the chunks to load, the ids that are skipped
after the last chunk, and how many of these already wait in the queue."""


class Source:
    """Reads the user's loader, epoch by epoch, as pairs (chunk, batch). The chunk is None if the loader has no ids.

    Args:
        loader: a DataLoader, or any other iterable of batches (which then have no ids).
        keep: (M,) bool by id. Ids with False are pruned from every epoch. The others come in batches of the usual size.
            If a single example is left at the end, it joins the batch before it, because BatchNorm cannot train on one
            example.
        total_batches: batches per epoch according to the user, if the loader has no length.
    """

    def __init__(self, loader: Iterable[Any], keep: Tensor | None = None, total_batches: int | None = None) -> None:
        self.user_loader: Any = loader
        self.keep = None if keep is None or bool(keep.all()) else keep
        # Only generators that exist now: a sampler that makes its generator in __iter__ also seeds it there.
        self._generator_owners = generator_owners(loader)
        self._total_batches = total_batches
        self._told_length = False
        self.stream: IndexStream | None = None
        self._loader: Any = loader
        if has_ids(self.user_loader):
            self._loader, self.stream = with_index_stream(self.user_loader)
            if self.keep is None and self._too_long_to_save:
                self.stream.places = batches_with_place(self.stream.batch_sampler)
        self._stateful = _keeps_its_place(loader) if self.stream is None else None
        self.position = 0
        """Number of batches returned in this epoch."""
        self._finished = False  # whether this epoch is known to have no more batches
        self._has_offered = False  # whether any epoch has had a batch
        self._has_warned = False
        self._resume_from: dict[str, Any] | None = None
        self._ended: dict[str, Any] | None = None  # the loader's own state at the end of the epoch before
        self._waiting = _NO_IDS  # those that waited when the epoch began
        self._planned = False  # whether it was decided about the epoch before loading
        self._resumed_stream: Any = None  # one that remembers the place at which it was resumed

    @property
    def _too_long_to_save(self) -> bool:
        """Whether an epoch has too many candidates to save the ids that are left of it, or no end that is known."""
        count = num_candidates(self.user_loader)
        return self._num_loader_batches() is None if count is None else count > _LONGEST_PLAN

    @property
    def num_examples(self) -> int | None:
        """Size of the data set, which is the number of rows of a ledger. None if the loader has no ids."""
        return len(self.user_loader.dataset) if self.stream is not None else None

    @property
    def num_batches(self) -> int | None:
        """Candidate batches per epoch, or None if not known. With pruning, the most that there can be."""
        total, size = self._num_loader_batches(), self.batch_size
        if self.keep is None or total is None or not size:
            return total
        count = most_kept(self.user_loader, self.keep)
        if count is None:
            return total
        # A single example at the end joins the batch before it. It is counted as a batch of its own nevertheless,
        # because training batches may be smaller than candidate batches.
        return min(total, count // size if drops_last(self.user_loader) else -(-count // size))

    @property
    def is_pruned(self) -> bool:
        """Whether an empty epoch is due to pruning: the loader itself has batches. Other ranks may still have some."""
        return self.keep is not None and self._num_loader_batches() != 0

    def _num_loader_batches(self) -> int | None:
        try:
            return len(self.user_loader)
        except TypeError:
            return self._total_batches

    def note_length(self) -> None:
        """Log once, at the end of an epoch, if it had another number of batches than the user said."""
        if self._total_batches in (None, self.position) or self._told_length or self.keep is not None:
            return
        self._told_length = True
        _logger.warning(
            "the epoch had %d candidate batches, and total_batches=%d was given: progress was wrong within the epoch, "
            "and so was a learning rate by step_by_progress. Pass total_batches=%d",
            self.position,
            self._total_batches,
            self.position,
        )

    @property
    def batch_size(self) -> int | None:
        """Size of a candidate batch; None if the loader does not say it."""
        return batch_size_of(self.user_loader)

    @property
    def num_candidates(self) -> int | None:
        """The most candidates that an epoch can have; None if not known."""
        batches, size = self.num_batches, self.batch_size
        counted = num_candidates(self.user_loader) if self.keep is None else most_kept(self.user_loader, self.keep)
        return counted if counted is not None else batches * size if batches and size else None

    @property
    def num_kept(self) -> int | None:
        """Number of examples in the data set that were not pruned; None if the loader has no ids."""
        return self.num_examples if self.keep is None else int(self.keep.sum())

    @property
    def offers_the_same_each_epoch(self) -> bool:
        """Whether every epoch is known to have the same ids, each once."""
        return self.stream is not None and offers_the_same_each_epoch(self.user_loader)

    def epoch(self, plan: Plan | None, waiting: Tensor = _NO_IDS) -> Generator[tuple[Chunk | None, Any]]:
        """Yield the candidate batches of one epoch, or the rest of one after load_state_dict.

        Args:
            plan: decides which of the epoch's ids to load, once they are known.
            waiting: rising ids of examples that already wait in the queue. They are not loaded.
        """
        chunk: Chunk | None = None
        for batch in self._start(plan, waiting):
            self.position += 1
            if self.stream is not None:
                chunk, batch = self.stream.take(batch)
            self._has_offered = True
            yield chunk, batch
        self._finished = True
        if not self.position and self._has_offered and iter(self._loader) is self._loader:
            raise ValueError(
                f"your loader is an iterator (a {type(self.user_loader).__name__}), which can be used only once, and "
                "an earlier epoch used it up. Pass something that starts anew for every epoch, such as a DataLoader, a "
                "list, or an object whose __iter__ makes a new generator"
            )

    def _start(self, plan: Plan | None, waiting: Tensor) -> Iterator[Any]:
        state, self._resume_from = self._resume_from, None
        self._finished = False
        if state is not None and not state["position"] and state.get("place", self) is None:
            waiting, state = state["waiting"], None  # nothing of the epoch was drawn when the state was saved
        if state is None:
            self.position, self._waiting, self._planned = 0, waiting, plan is not None
            ended, self._ended = self._ended, None
            if self._resumed_stream is not None:
                self._resumed_stream.load_state_dict(None)
                self._resumed_stream = None
            elif ended is not None:
                return self._next_epoch(ended)
            if self.stream is not None:
                if self.stream.places is not None:
                    self.stream.places.reset()
                # The stream refers to this generator. If the generator referred back to the source, the workers of an
                # unused loader would live on until the garbage collector runs.
                self.stream.begin(Source._chunks(weakref.proxy(self), self.stream, plan, waiting))
            return iter(self._loader)
        self._planned = "place" not in state
        # A stream of `datasets` would begin all later epochs, too, at the place that is loaded here.
        self._resumed_stream = _stream_of_datasets(self.user_loader)
        if self.stream is not None:
            chunks: Iterator[Chunk] = iter(chunks_from_state(state["chunks"]))
            if "place" in state:
                chunks = self._from_place(chunks, self.stream, state)
            self.stream.begin(chunks)
            self.stream.tail, self.stream.tail_waiting = state["tail"], state["tail_waiting"]
        if state.get("finished"):
            self._ended = state["inner"] if self._resumed_stream is None else None
            return iter(())  # iter() of a loader that saves its own state would start the next epoch
        if self.stream is None and state["inner"] is not None:
            if self._stateful is None:
                raise ValueError(
                    "the state has the place of a loader that saves it, but your "
                    f"{type(self.user_loader).__name__} has no load_state_dict: resume with the same kind of loader"
                )
            self._stateful.load_state_dict(state["inner"])
        # A DataLoader draws a seed for its workers whenever it starts. A run that never stopped draws no seed here, so
        # this draw is undone.
        with untouched_generators(self._generator_owners), preserved_rng(torch.device("cpu")):
            iterator: Iterator[Any] = iter(self._loader)
            if self.stream is None and state["inner"] is None:
                for passed in range(self.position):  # without ids, batches can only be loaded and dropped to get there
                    if next(iterator, _NO_BATCH) is _NO_BATCH:
                        raise ValueError(
                            f"the loader ended after {passed} batches, but it had offered {self.position} when the "
                            "state was saved: it is another loader, or its data changed. Resume with the same data"
                        )
            return iterator

    def _next_epoch(self, ended: dict[str, Any]) -> Iterator[Any]:
        """Begin an epoch with a loader that keeps its own place, from its state at the end of the epoch before."""
        assert self._stateful is not None
        self._stateful.load_state_dict(ended)
        generators = [(generator, generator.get_state()) for generator in self.generators()]
        states = random_states(torch.device("cpu"))
        iterator = iter(self._loader)
        if (first := next(iterator, _NO_BATCH)) is not _NO_BATCH:
            return itertools.chain([first], iterator)
        # The loader was still at that end, and its next epoch begins now. A run that never stopped did not begin twice,
        # so what the first beginning drew is undone.
        set_random_states(states, torch.device("cpu"))
        for generator, saved in generators:
            generator.set_state(saved)
        return iter(self._loader)

    def _from_place(self, chunks: Iterator[Chunk], stream: IndexStream, state: dict[str, Any]) -> Iterator[Chunk]:
        """Return these chunks and then those from the place in the sampler that was saved."""
        if stream.places is None:
            raise ValueError(
                "the state has a place in a sampler of very many indices, and your sampler is of another kind: resume "
                "with the same sampler"
            )
        stream.places.reset()
        if state["place"] is not None:
            stream.places.load_state_dict(state["place"])
        self._waiting = state["waiting"]
        return itertools.chain(chunks, Source._chunks(weakref.proxy(self), stream, None, self._waiting))

    def _chunks(self, stream: IndexStream, plan: Plan | None, waiting: Tensor) -> Iterator[Chunk]:
        # A generator, so that the user's sampler draws its order when the DataLoader first asks, as without us.
        stream.tail, stream.tail_waiting = torch.empty(0, dtype=torch.int64), 0
        if plan is not None:
            batches = stream.joined_batches()
            if self.keep is not None:
                batches = joined(ids for ids, _ in Source._unpruned(self, stream, self.keep))
            chunks, stream.tail, stream.tail_waiting = plan(self._with_an_end(batches))
            yield from chunks
        elif len(waiting):
            yield from unless_waiting(Source._batches(self, stream), waiting, stream)
        else:
            for ids, fraction in Source._batches(self, stream):  # self is a proxy, and must stay one
                yield Chunk(ids, ids, fraction)

    def _batches(self, stream: IndexStream) -> Iterator[tuple[Tensor, float]]:
        """Yield batches of ids that are not pruned, with the fraction of the epoch at the end of each."""
        if self.keep is not None:
            yield from Source._unpruned(self, stream, self.keep)
            return
        total = self._num_loader_batches()
        for number, ids in enumerate(stream.batches(), start=1):
            if stream.places is not None:
                number = stream.places.count  # which goes on after a resume
            yield ids, min(1.0, number / total) if total else 0.0

    @property
    def longest_plan(self) -> int:
        """The most candidates that an epoch may have to be planned before loading."""
        return max(_LONGEST_PLAN, 4 * (self.num_examples or 0))

    @property
    def can_be_planned(self) -> bool:
        """Whether an epoch's ids can be collected before it is loaded."""
        return self.stream is not None and (num_candidates(self.user_loader) or 0) <= self.longest_plan

    def _with_an_end(self, batches: Iterable[IdBlock]) -> Iterator[IdBlock]:
        """Hand on all batches of ids. Raises if they do not seem to end."""
        count, longest = 0, max(_LONGEST_UNKNOWN, 4 * (self.num_examples or 0))
        has_length = self._num_loader_batches() is not None
        for block in batches:
            yield block
            count += len(block.ids)
            if count > longest and not has_length:
                raise ValueError(
                    f"your batch sampler has yielded {count:,} indices without an end, for a data set of "
                    f"{self.num_examples:,} examples, and this method decides about a whole epoch before it loads it. "
                    "End the epoch after one pass over the data set, or use a method that decides batch by batch, such "
                    "as selective_backprop"
                )

    def _unpruned(self, stream: IndexStream, keep: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Yield batches of the usual size and order, without pruned ids, with the fraction of the epoch at each end.

        This stays one batch behind the sampler: the last batch has the fraction 1, whatever is pruned after it.
        """
        total, size, number = self._num_loader_batches(), self.batch_size or 0, 0
        waiting = torch.empty(0, dtype=torch.int64)
        held: tuple[Tensor, float] | None = None
        for number, ids in enumerate(stream.batches(), start=1):
            size = max(size, len(ids))
            waiting = torch.cat([waiting, ids[keep[ids]]])
            while len(waiting) >= size > 0:
                if held is not None:
                    yield held
                rest = waiting[size:]
                held = waiting[:size], min(1.0, (number - len(rest) / size) / total) if total else 0.0
                waiting = rest
        end = 1.0 if total else 0.0
        if len(waiting) and not drops_last(self.user_loader):
            if held is not None and (len(waiting) > 1 or size == 1):
                yield held
            elif held is not None:
                waiting = torch.cat([held[0], waiting])
            yield waiting, end
        elif held is not None:
            yield held[0], end

    @property
    def tail(self) -> tuple[Tensor, int]:
        """Ids that were skipped after the last batch of the epoch, and how many of them already wait in the queue."""
        return (_NO_IDS, 0) if self.stream is None else (self.stream.tail, self.stream.tail_waiting)

    def drop_tail(self) -> None:
        """Forget the tail once it is counted, so that it is not counted again after a resume."""
        if self.stream is not None:
            self.stream.tail, self.stream.tail_waiting = _NO_IDS, 0

    def generators(self) -> list[torch.Generator]:
        """The user's generators whose states are saved and loaded."""
        return generators_of(self._generator_owners)

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if in_epoch:
            # If a state was loaded and nothing read since, the place is still the one in that state.
            state |= self._resume_from or self._place()
        elif self._ended is not None:
            state["ended"] = self._ended
        elif self._stateful is not None and self._finished and _stream_of_datasets(self.user_loader) is None:
            state["ended"] = self._stateful.state_dict()
        # Read last: asking the sampler for the rest of its epoch, above, may draw from its generator.
        state["generators"] = [generator.get_state() for generator in generators_of(self._generator_owners)]
        return state

    def _place(self) -> dict[str, Any]:
        """Describe the current place in the epoch, for the state."""
        self._warn_of_workers()
        place: dict[str, Any] = {"position": self.position, "finished": self._finished}
        place |= {"chunks": None, "tail": None, "tail_waiting": 0, "inner": None}
        if self.stream is None:
            place["inner"] = self._stateful.state_dict() if self._stateful is not None else None
            return place
        if not self.stream.in_order:
            raise ValueError(
                f"cannot save in the middle of an epoch: {type(self.user_loader).__name__}.__iter__ drops or reorders "
                "batches, so it is not known which ones are left. Save between epochs"
            )
        if self.stream.places is not None and not self._planned:
            saved = {"place": self.stream.places.state_dict(), "waiting": self._waiting}
            place |= saved | {"chunks": chunks_to_state(self.stream.handed_out)}
        else:
            self._require_an_end()
            # The chunks come first: the tail is known only when all chunks are.
            place["chunks"] = chunks_to_state(self.stream.remaining())
        return place | {"tail": self.stream.tail, "tail_waiting": self.stream.tail_waiting}

    def _require_an_end(self) -> None:
        """Raise if the ids that are left of the epoch are too many to save, or never end."""
        try:
            len(self.user_loader.batch_sampler)
        except TypeError:
            raise ValueError(
                "cannot save in the middle of an epoch: the batch sampler has no length and may never end. Give it "
                "state_dict and load_state_dict, or a __len__ if it does end; or save between epochs"
            ) from None
        count = num_candidates(self.user_loader)
        if count is not None and count > self.longest_plan:
            raise ValueError(
                f"cannot save in the middle of an epoch of {count:,} candidates: the ids that are left are too many to "
                f"be saved, and the place in {'a pruned sampler' if self.keep is not None else 'your sampler'} is not "
                "known. Use torch's RandomSampler or SequentialSampler in torch's BatchSampler, without pruning, or "
                "give your own sampler state_dict and load_state_dict; or make epochs shorter and save between them"
            )

    def _warn_of_workers(self) -> None:
        """Log once that a resume from here may draw other random numbers inside workers than this run would."""
        keeps_own_state = self._stateful is not None
        if self._has_warned or not getattr(self.user_loader, "num_workers", 0) or self._finished or keeps_own_state:
            return
        self._has_warned = True
        _logger.warning(
            "saving in the middle of an epoch with %d workers: a resume offers the same examples in the same order, "
            "but random augmentation inside workers goes on with other random numbers, because workers start anew. If "
            "your data set draws any, save between epochs, which is exact, or make augmentation follow from the index "
            "and the epoch, or do it by transform= of SelectiveLoader",
            self.user_loader.num_workers,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generators = generators_of(self._generator_owners)
        if len(generators) != len(state["generators"]):
            raise ValueError(
                f"the state was saved with {len(state['generators'])} random generators in the DataLoader and its "
                f"samplers, but your DataLoader has {len(generators)}: make it the same way as in the saved run"
            )
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        self._resume_from = state if "position" in state else None
        self._ended = state.get("ended") if self._stateful is not None else None
        self.position = state.get("position", 0)


def _stream_of_datasets(loader: Any) -> Any:
    """Return the loader's data if it is an IterableDataset of Hugging Face's `datasets`, else None."""
    kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    stream = getattr(loader, "dataset", None)
    return stream if kind is not None and isinstance(stream, kind) else None


def _keeps_its_place(loader: Any) -> Any:
    """Return what saves and restores the place in an epoch: the loader itself, or its stream of data; None if neither.

    Without workers, a DataLoader takes from its stream just the examples of the batches that it has returned. So the
    stream's own state, as that of an IterableDataset of Hugging Face, is the place.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    if not isinstance(loader, DataLoader) or loader.num_workers or not isinstance(loader.dataset, IterableDataset):
        return None
    stream: Any = loader.dataset
    if not hasattr(stream, "load_state_dict") or not callable(getattr(stream, "state_dict", None)):
        return None
    needed = [p for p in inspect.signature(stream.state_dict).parameters.values() if p.default is p.empty]
    return None if needed else stream  # a StreamingDataset must be told its place, which its own loader counts
