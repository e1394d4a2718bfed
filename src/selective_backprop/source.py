"""Candidates from the user's loader, with their ids, from any point of an epoch on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from selective_backprop.no_trace import preserved_rng
from selective_backprop.sampling import (
    Chunk,
    IndexStream,
    chunks_from_state,
    chunks_to_state,
    has_ids,
    with_index_stream,
)

_NO_BATCH = object()
Plan = Callable[[list[Tensor]], tuple[list[Chunk], Tensor]]


class Source:
    """One epoch after the other of (chunk, loaded batch) pairs; the chunk is None where there are no ids.

    Args:
        loader: a DataLoader, or any other iterable of batches (which then have no ids).
        keep: (M,) bool by id; the other ids are pruned from every epoch.
    """

    def __init__(self, loader: Iterable[Any], keep: Tensor | None = None) -> None:
        self.user_loader: Any = loader
        self.keep = keep
        self._kept_share = 1.0 if keep is None else float(keep.float().mean())
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
        """Candidate batches of an epoch, where the loader knows."""
        try:
            total = len(self.user_loader)
        except TypeError:
            return None
        return math.ceil(total * self._kept_share)

    @property
    def batch_size(self) -> int | None:
        """Size of a candidate batch, where the loader says it."""
        for owner in (self.user_loader, getattr(self.user_loader, "batch_sampler", None)):
            size = getattr(owner, "batch_size", None)
            if isinstance(size, int) and not isinstance(size, bool):
                return size
        return None

    def epoch(self, plan: Plan | None) -> Iterator[tuple[Chunk | None, Any]]:
        """The candidates of one epoch, or of the rest of one after load_state_dict.

        plan: decides, once the epoch's ids are known, which of them to load.
        """
        for batch in self._start(plan):
            self.position += 1
            yield (self.stream.take() if self.stream is not None else None), batch
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
        with self._untouched_generators():
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
        batches = stream.batches() if self.keep is None else self._unpruned(stream, self.keep)
        if plan is not None:
            chunks, stream.tail = plan(list(batches))
            yield from chunks
            return
        total = self.num_batches
        for number, ids in enumerate(batches, start=1):
            yield Chunk(ids, ids, min(1.0, number / total) if total else 0.0)

    def _unpruned(self, stream: IndexStream, keep: Tensor) -> Iterator[Tensor]:
        """Batches of the usual size, in the usual order, without the pruned ids."""
        waiting, size = torch.empty(0, dtype=torch.int64), 0
        for ids in stream.batches():
            size = size or len(ids)
            waiting = torch.cat([waiting, ids[keep[ids]]])
            while len(waiting) >= size:
                yield waiting[:size]
                waiting = waiting[size:]
        if len(waiting) and not getattr(self.user_loader, "drop_last", False):
            yield waiting

    def _generators(self) -> list[torch.Generator]:
        """The user's generators that decide on order and on worker seeds."""
        loader = self.user_loader
        owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
        found = {id(g): g for owner in owners if isinstance(g := getattr(owner, "generator", None), torch.Generator)}
        return list(found.values())

    @contextmanager
    def _untouched_generators(self) -> Iterator[None]:
        states = [generator.get_state() for generator in self._generators()]
        with preserved_rng(torch.device("cpu")):
            yield
        for generator, saved in zip(self._generators(), states, strict=True):
            generator.set_state(saved)

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        state: dict[str, Any] = {}
        if in_epoch:
            # Loaded, and not gone on with since: still at the same place.
            state |= self._resume_from or self._place()
        # Last, because asking a sampler for the rest of its epoch may draw from its generator.
        state["generators"] = [generator.get_state() for generator in self._generators()]
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
        return place | {"chunks": chunks_to_state(self.stream.remaining()), "tail": self.stream.tail}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generators = self._generators()
        if len(generators) != len(state["generators"]):
            raise ValueError(
                f"saved with {len(state['generators'])} generators in the DataLoader and its samplers, "
                f"this one has {len(generators)}"
            )
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        self._resume_from = state if "position" in state else None
        self.position = state.get("position", 0)
