"""Candidates from the user's loader, with their ids, from any point of an epoch on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from selective_backprop.no_trace import preserved_rng
from selective_backprop.sampling import (
    Chunk,
    IndexStream,
    batch_size_of,
    chunks_from_state,
    chunks_to_state,
    drops_last,
    generators_of,
    has_ids,
    most_kept,
    untouched_generators,
    with_index_stream,
)

_NO_BATCH = object()
Plan = Callable[[list[Tensor]], tuple[list[Chunk], Tensor]]


class Source:
    """One epoch after the other of (chunk, loaded batch) pairs; the chunk is None where there are no ids.

    Args:
        loader: a DataLoader, or any other iterable of batches (which then have no ids).
        keep: (M,) bool by id; the other ids are pruned from every epoch. What is left comes in batches of the usual
            size. If a single example is left at the end, it goes into the batch before it: BatchNorm could not be
            trained on it alone.
    """

    def __init__(self, loader: Iterable[Any], keep: Tensor | None = None) -> None:
        self.user_loader: Any = loader
        self.keep = None if keep is None or bool(keep.all()) else keep
        self.stream: IndexStream | None = None
        self._loader: Any = loader
        if has_ids(self.user_loader):
            self._loader, self.stream = with_index_stream(self.user_loader)
        self.position = 0
        """Batches returned in this epoch."""
        self._finished = False  # whether this epoch is known to have no more
        self._resume_from: dict[str, Any] | None = None

    @property
    def num_examples(self) -> int | None:
        """Rows that a ledger needs: one per id."""
        return len(self.user_loader.dataset) if self.stream is not None else None

    @property
    def num_batches(self) -> int | None:
        """Candidate batches of an epoch, where the loader knows; with pruning, the most that there can be."""
        total, size = self._num_loader_batches(), self.batch_size
        if self.keep is None or total is None or not size:
            return total
        count = most_kept(self.user_loader, self.keep)
        if count is None:
            return total
        # A single example left goes into the batch before it, and is counted as one of its own nevertheless: training
        # batches may be smaller than these.
        return min(total, count // size if drops_last(self.user_loader) else -(-count // size))

    def _num_loader_batches(self) -> int | None:
        try:
            return len(self.user_loader)
        except TypeError:
            return None

    @property
    def batch_size(self) -> int | None:
        """Size of a candidate batch, where the loader says it."""
        return batch_size_of(self.user_loader)

    def epoch(self, plan: Plan | None) -> Iterator[tuple[Chunk | None, Any]]:
        """The candidates of one epoch, or of the rest of one after load_state_dict.

        plan: decides, once the epoch's ids are known, which of them to load.
        """
        chunk: Chunk | None = None
        for batch in self._start(plan):
            self.position += 1
            if self.stream is not None:
                chunk, batch = self.stream.take(batch)
            yield chunk, batch
        self._finished = True

    def _start(self, plan: Plan | None) -> Iterator[Any]:
        state, self._resume_from = self._resume_from, None
        self._finished = False
        if state is None:
            self.position = 0
            if self.stream is not None:
                self.stream.begin(self._chunks(self.stream, plan))
            return iter(self._loader)
        if self.stream is not None:
            self.stream.begin(iter(chunks_from_state(state["chunks"])))
            self.stream.tail = state["tail"]
        if state.get("finished"):
            return iter(())  # a loader with a state of its own would start the next epoch
        if self.stream is None and state["inner"] is not None:
            self._loader.load_state_dict(state["inner"])
        # A DataLoader draws a seed for its workers whenever it starts; the run that never stopped did not draw
        # it here, so neither may this one.
        with untouched_generators(self.user_loader), preserved_rng(torch.device("cpu")):
            iterator: Iterator[Any] = iter(self._loader)
            if self.stream is None and state["inner"] is None:
                for passed in range(self.position):  # no other way to get there than to load and drop
                    if next(iterator, _NO_BATCH) is _NO_BATCH:
                        raise ValueError(
                            f"the loader ended after {passed} of the {self.position} batches that it had offered when "
                            "the state was saved: it is another one, or its data changed"
                        )
            return iterator

    def _chunks(self, stream: IndexStream, plan: Plan | None) -> Iterator[Chunk]:
        # A generator: the user's sampler draws its order when the DataLoader first asks, as it always does.
        stream.tail = torch.empty(0, dtype=torch.int64)
        if plan is not None:
            batches = stream.batches() if self.keep is None else (ids for ids, _ in self._unpruned(stream, self.keep))
            chunks, stream.tail = plan(list(batches))
            yield from chunks
        elif self.keep is not None:
            for ids, fraction in self._unpruned(stream, self.keep):
                yield Chunk(ids, ids, fraction)
        else:
            total = self._num_loader_batches()
            for number, ids in enumerate(stream.batches(), start=1):
                yield Chunk(ids, ids, min(1.0, number / total) if total else 0.0)

    def _unpruned(self, stream: IndexStream, keep: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Batches of the usual size, in the usual order, without the pruned ids; and how far into the epoch each is.

        One batch behind the sampler, because the last one is at the very end of the epoch, whatever is pruned after it.
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

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if in_epoch:
            # Loaded, and not gone on with since: still at the same place.
            state |= self._resume_from or self._place()
        # Last, because asking a sampler for the rest of its epoch may draw from its generator.
        state["generators"] = [generator.get_state() for generator in generators_of(self.user_loader)]
        return state

    def _place(self) -> dict[str, Any]:
        """Where in the epoch this is."""
        place: dict[str, Any] = {"position": self.position, "finished": self._finished}
        place |= {"chunks": None, "tail": None, "inner": None}
        if self.stream is None:
            place["inner"] = self._loader.state_dict() if hasattr(self._loader, "load_state_dict") else None
            return place
        try:
            len(self.stream)
        except TypeError:
            raise ValueError(
                "cannot save in the middle of an epoch: the batch sampler has no length and may never end"
            ) from None
        if not self.stream.in_order:
            raise ValueError(
                f"cannot save in the middle of an epoch: {type(self.user_loader).__name__}.__iter__ drops or reorders "
                "batches, and does not tell what it keeps. Save between epochs"
            )
        return place | {"chunks": chunks_to_state(self.stream.remaining()), "tail": self.stream.tail}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generators = generators_of(self.user_loader)
        if len(generators) != len(state["generators"]):
            raise ValueError(
                f"saved with {len(state['generators'])} generators in the DataLoader and its samplers, "
                f"this one has {len(generators)}"
            )
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        self._resume_from = state if "position" in state else None
        self.position = state.get("position", 0)
