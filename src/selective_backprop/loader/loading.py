"""Loading: takes batches from the user's loader, moves them to the device and applies the user's transform."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.batches.layout import Layout, count_rows, move
from selective_backprop.loader.index_stream import Chunk, chunks_from_state, chunks_to_state
from selective_backprop.loader.source import Plan, Source
from selective_backprop.loader.stats import Stats
from selective_backprop.types import Candidates


class Loaded(NamedTuple):
    """One candidate batch on the device, and its place in the epoch."""

    candidates: Candidates
    chunk: Chunk | None
    """The ids of the batch, and what was decided about them before loading. None if the loader has no ids."""
    batch_idx: int
    """Number of candidate batches loaded before this one in the epoch."""
    fraction: float
    """Fraction of the epoch's candidates offered, this batch included."""

    @property
    def undecided(self) -> bool:
        """Whether no candidate of this batch was decided about before loading."""
        return self.chunk is None or self.chunk.decided is None or not bool(self.chunk.decided.any())

    @staticmethod
    def nothing(batch_idx: int) -> Loaded:
        """Make an empty batch, for a rank that has run out of candidates while others still have some."""
        return Loaded(Candidates(None, None, 0), None, batch_idx, 1.0)


class Loading:
    """Loads candidate batches one after the other, and saves the states of the source and of the user's transform."""

    def __init__(
        self, source: Source, device: torch.device, transform: Callable[[Any], Any] | None, stats: Stats
    ) -> None:
        self.source = source
        self.transform: Any = transform
        self._transform_takes_ids: bool = getattr(transform, "takes_ids", False)
        self._epoch = 0
        self._device = device
        self._stats = stats
        self._batches: Generator[tuple[Chunk | None, Any]] | None = None
        self.ahead: Loaded | None = None
        """The next candidates, if they were loaded before their turn."""

    def move(self, device: torch.device) -> None:
        """Load candidates to this device from now on."""
        self._device = device
        if self.ahead is not None:
            candidates = replace(self.ahead.candidates, data=move(self.ahead.candidates.data, device))
            self.ahead = self.ahead._replace(candidates=candidates)

    def begin(self, epoch: int, plan: Plan | None, waiting: Tensor) -> None:
        """Start this epoch, or go on with it if it was under way when the state was saved.

        waiting: rising ids of examples that already wait in the queue. They are not loaded.
        """
        self._epoch = epoch
        self._batches = self.source.epoch(plan, waiting)

    def release(self) -> None:
        """Let go of the user's loader, which ends its workers. The place in the epoch can still be saved."""
        if self._batches is not None:
            self._batches.close()

    def take(self) -> Loaded | None:
        """Return the next candidates; None at the end of the epoch."""
        if self.ahead is None:
            return self._load()
        loaded, self.ahead = self.ahead, None
        return loaded

    def drop_ahead(self) -> None:
        """Drop the candidates that were loaded ahead."""
        self.ahead = None

    def look_ahead(self) -> Loaded | None:
        """Load the next candidates now. `take` will return the same."""
        if self.ahead is None:
            self.ahead = self._load()
        return self.ahead

    def _load(self) -> Loaded | None:
        phase = self._stats.switch("loading")
        loaded = next(self._batches, None) if self._batches is not None else None
        if loaded is not None:
            chunk, data = loaded
            data = move(data, self._device)
            if self._transform_takes_ids:
                assert chunk is not None  # checked when the loader was made
                data = self.transform(data, chunk.ids, self._epoch)
            elif self.transform is not None:
                data = self.transform(data)
        self._stats.switch(phase)
        if loaded is None:
            return None
        position = self.source.position
        if chunk is not None:
            return Loaded(Candidates(data, chunk.ids, chunk.ids.numel()), chunk, position - 1, chunk.fraction)
        total = self.source.num_batches
        fraction = min(1.0, position / total) if total else 0.0
        return Loaded(Candidates(data, None, count_rows(data)), None, position - 1, fraction)

    def state_dict(self, *, in_epoch: bool, layout: Layout | None) -> dict[str, Any]:
        """Return the state. Candidates that were loaded ahead are saved as columns of this layout."""
        ahead = None
        if in_epoch and self.ahead is not None:
            assert layout is not None  # known from the first candidates, which are never loaded ahead
            ahead = {
                "columns": layout.columns(self.ahead.candidates.data),
                "size": self.ahead.candidates.size,
                "chunk": None if self.ahead.chunk is None else chunks_to_state([self.ahead.chunk]),
                "batch_idx": self.ahead.batch_idx,
                "fraction": self.ahead.fraction,
            }
        return {
            "ahead": ahead,
            "source": self.source.state_dict(in_epoch=in_epoch),
            "transform": self.transform.state_dict() if hasattr(self.transform, "state_dict") else None,
        }

    def load_state_dict(self, state: dict[str, Any], layout: Layout | None) -> None:
        self.ahead = None
        if (ahead := state.get("ahead")) is not None:
            assert layout is not None
            data = layout.batch([move(column, self._device) for column in ahead["columns"]])
            chunk = None if ahead["chunk"] is None else chunks_from_state(ahead["chunk"])[0]
            candidates = Candidates(data, chunk.ids if chunk else None, ahead["size"])
            self.ahead = Loaded(candidates, chunk, ahead["batch_idx"], ahead["fraction"])
        self.source.load_state_dict(state["source"])
        if hasattr(self.transform, "load_state_dict") and state["transform"] is not None:
            self.transform.load_state_dict(state["transform"])
