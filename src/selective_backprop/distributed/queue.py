"""Training batches that are full on every rank, and as many on each.

# k = number of ranks, B = training batch of a rank
"""

from __future__ import annotations

import io
from typing import Any

import torch

from selective_backprop.batches.layout import Layout, move
from selective_backprop.batches.padding import Pad
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.loader.queue import Assembler, Rows
from selective_backprop.types import Batch

Move = tuple[int, int, int]
"""From one rank, to another, how many examples."""


class RankedAssembler(Assembler):
    """A queue on each rank; a batch is full when it is on all of them.

    Each rank knows how long all queues are. They differ by chance, and grow apart for good where one rank's data is
    harder than another's: when one has a batch to spare and another has none, examples move between them.

    Args:
        ranks: who takes part.
        device: where examples that arrive from other ranks are put.
    """

    def __init__(self, ranks: Ranks, device: torch.device, batch_size: int | None, pad: Pad | None) -> None:
        super().__init__(batch_size, pad)
        self._ranks = ranks
        self.device = device
        self.lengths = [0] * ranks.size
        """Examples that wait on each rank for their batches to fill."""
        self.moved = 0
        """Examples that went to another rank so far, from all of them."""

    @property
    def empty(self) -> bool:
        return not any(self.lengths) and not self._whole

    @property
    def num_ready(self) -> int:
        return len(self._whole) + (min(self.lengths) // self.batch_size if self.batch_size else 0)

    @property
    def rest(self) -> int:
        """Examples of each rank that wait for their batch to fill, once the queues are evened out."""
        return sum(self.lengths) // len(self.lengths) % self.batch_size if self.batch_size else 0

    def count(self, added: list[int]) -> None:
        """So many examples were added to the queue of each rank; to be called by all, after adding."""
        assert self.batch_size is not None
        self.lengths = [length + more for length, more in zip(self.lengths, added, strict=True)]
        if min(self.lengths) < self.batch_size and max(self.lengths) >= 2 * self.batch_size:
            self.even_out()

    def even_out(self) -> None:
        """Move examples so that all queues are as long, but for one example; to be called by all ranks."""
        moves = moves_to_even_out(self.lengths)
        if not moves:
            return
        going = {to: self._release(count) for giver, to, count in moves if giver == self._ranks.rank}
        parts = [_pack(self.layout, going[to]) if to in going else _NO_BYTES for to in range(self._ranks.size)]
        for part in self._ranks.exchange(parts):
            if len(part):
                self._receive(part)
        for giver, to, count in moves:
            self.lengths[giver] -= count
            self.lengths[to] += count
            self.moved += count

    def fill_batches(self) -> None:
        """Even out where that fills a batch on every rank; to be called by all ranks."""
        if self.batch_size is not None and sum(self.lengths) >= len(self.lengths) * self.batch_size:
            self.even_out()

    def _release(self, count: int) -> list[Rows]:
        """The last `count` waiting examples."""
        stay = self._split_off(self._waiting - count)
        leave = self._split_off(count)
        self._pieces.extend(stay)
        self._waiting = sum(len(piece.weights) for piece in stay)
        return leave

    def _receive(self, packed: torch.Tensor) -> None:
        # Lists may hold anything that can be pickled; as torch's own messages of objects, ranks trust each other.
        layout, pieces = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=False)
        if self.layout is None:
            self.layout = Layout.from_state_dict(layout)
        for columns, *notes in pieces:
            self._pieces.append(Rows([move(column, self.device) for column in columns], *notes))
            self._waiting += len(self._pieces[-1].weights)

    def pop(self) -> Batch | None:
        if not self.num_ready:
            return None
        if not self._whole:
            assert self.batch_size is not None
            self.lengths = [length - self.batch_size for length in self.lengths]
        return super().pop()

    def flush(self) -> Batch | None:
        """What is left, evened out, as equally small a batch on each rank; up to k - 1 examples stay."""
        assert not self.num_ready
        count = min(self.lengths)
        self.lengths = [length - count for length in self.lengths]
        return self._batch(self._first(count)) if count else None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "lengths": list(self.lengths), "moved": self.moved}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self.lengths, self.moved = list(state["lengths"]), state["moved"]


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


def moves_to_even_out(lengths: list[int]) -> list[Move]:
    """The fewest examples to move so that no queue is longer than another by more than one.

    >>> moves_to_even_out([300, 100, 200, 201])
    [(0, 1, 99), (3, 1, 1)]
    """
    mean, extra = divmod(sum(lengths), len(lengths))
    # The longest queues keep the examples that do not divide evenly.
    longest = sorted(range(len(lengths)), key=lambda rank: -lengths[rank])[:extra]
    missing = [mean + (rank in longest) - length for rank, length in enumerate(lengths)]
    moves = []
    takers = [rank for rank, count in enumerate(missing) if count > 0]
    for giver, count in enumerate(missing):
        while count < 0:
            step = min(-count, missing[takers[0]])
            moves.append((giver, takers[0], step))
            missing[takers[0]] -= step
            count += step
            if not missing[takers[0]]:
                takers.pop(0)
    return moves


def _pack(layout: Layout | None, pieces: list[Rows]) -> torch.Tensor:
    assert layout is not None
    cpu = torch.device("cpu")
    rows = [[[move(column, cpu) for column in piece.columns], *piece[1:]] for piece in pieces]
    # Slices would be saved with all that they are slices of.
    rows = torch.utils._pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, rows)
    buffer = io.BytesIO()
    torch.save([layout.state_dict(), rows], buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
