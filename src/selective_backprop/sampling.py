"""Which ids are loaded together: the batch sampler that stands between the user's one and the DataLoader."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


@dataclass(frozen=True)
class Chunk:
    """Ids that are loaded together, and what was decided about them beforehand."""

    ids: Tensor
    """(n,) int64: what is loaded."""
    offered: Tensor
    """The same, and the ids that were skipped since the chunk before; in the last chunk also those after it."""
    fraction: float
    """How much of the epoch's candidates have been offered once this chunk has."""
    decided: Tensor | None = None
    """(n,) bool: selected already; the others have to be scored. None: nothing is decided."""
    weights: Tensor | None = None
    probabilities: Tensor | None = None


class IndexStream:
    """A batch sampler that remembers what it handed out, so that each loaded batch finds its ids again.

    DataLoader asks for indices ahead of time (workers) but returns batches in the order of asking.
    """

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.tail = torch.empty(0, dtype=torch.int64)  # ids offered where there is no chunk, all of them skipped
        self._source: Iterator[Chunk] = iter(())
        self._handed_out: deque[Chunk] = deque()

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def begin(self, chunks: Iterator[Chunk]) -> None:
        """Hand out these chunks in the next iteration. Nothing is drawn from the user's sampler before that."""
        self._source, self._handed_out = chunks, deque()

    def __iter__(self) -> Iterator[list[int]]:
        # A while loop, not a for: remaining() replaces the source while this generator is suspended.
        while (chunk := next(self._source, None)) is not None:
            self._handed_out.append(chunk)
            yield chunk.ids.tolist()

    def batches(self) -> Iterator[Tensor]:
        """The user's batches of ids for one epoch."""
        for indices in self.batch_sampler:
            try:
                ids = torch.as_tensor(indices)
            except (TypeError, ValueError):
                ids = torch.empty(0)
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"the sampler has to yield integer indices, which serve as ids; got {indices!r:.200}")
            yield ids.to(torch.int64)

    def take(self) -> Chunk:
        """The chunk of the batch that the DataLoader just returned."""
        return self._handed_out.popleft()

    def remaining(self) -> list[Chunk]:
        """Chunks of this epoch whose batches have not been returned yet."""
        rest = list(self._source)
        self._source = iter(rest)
        return [*self._handed_out, *rest]


def has_ids(loader: Any) -> bool:
    """Whether the loader draws batches of indices from a map-style data set."""
    if not isinstance(loader, DataLoader):
        return False
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)


def with_index_stream(loader: Any) -> tuple[DataLoader[Any], IndexStream]:
    """A copy of the user's DataLoader, of its own class, that takes its indices from an IndexStream."""
    stream = IndexStream(loader.batch_sampler)
    clone = copy.copy(loader)
    # DataLoader refuses to have these set after construction, so that nobody changes a loader in use; this one
    # is not in use yet. Out-of-order batches could not be matched with their ids.
    clone.__dict__.update(batch_sampler=stream, _iterator=None, in_order=True)
    return clone, stream


def chunks_to_state(chunks: list[Chunk]) -> dict[str, Any]:
    """A few flat tensors instead of thousands of small ones."""
    nothing = torch.empty(0, dtype=torch.int64)
    state: dict[str, Any] = {
        "ids": torch.cat([nothing, *(chunk.ids for chunk in chunks)]),
        "sizes": [len(chunk.ids) for chunk in chunks],
        "offered": torch.cat([nothing, *(chunk.offered for chunk in chunks)]),
        "offered_sizes": [len(chunk.offered) for chunk in chunks],
        "fractions": [chunk.fraction for chunk in chunks],
        "decided": None,
    }
    if chunks and chunks[0].decided is not None:
        for name in ("decided", "weights", "probabilities"):
            state[name] = torch.cat([getattr(chunk, name) for chunk in chunks])
    return state


def chunks_from_state(state: dict[str, Any]) -> list[Chunk]:
    """The inverse of `chunks_to_state`."""
    ids = state["ids"].split(state["sizes"])
    offered = state["offered"].split(state["offered_sizes"])
    if state["decided"] is None:
        return [Chunk(*parts) for parts in zip(ids, offered, state["fractions"], strict=True)]
    extra = [state[name].split(state["sizes"]) for name in ("decided", "weights", "probabilities")]
    return [Chunk(*parts) for parts in zip(ids, offered, state["fractions"], *extra, strict=True)]
