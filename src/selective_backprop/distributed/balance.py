"""Examples that wait, moved between ranks so that as many wait on each."""

from __future__ import annotations

import io
from typing import Any

import torch

from selective_backprop.batches.layout import Layout, move

Move = tuple[int, int, int]
"""From one rank, to another, how many examples."""

NO_BYTES = torch.empty(0, dtype=torch.uint8)


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


def pack(layout: Layout, pieces: list[Any]) -> torch.Tensor:
    """Pieces of a queue as bytes: each has its columns first, then tensors with one entry per example."""
    cpu = torch.device("cpu")
    rows = [[[move(column, cpu) for column in columns], *notes] for columns, *notes in pieces]
    # Slices would be saved with all that they are slices of.
    rows = torch.utils._pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, rows)
    buffer = io.BytesIO()
    torch.save([layout.state_dict(), rows], buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> tuple[Layout, list[Any]]:
    """What `pack` packed on another rank."""
    # Lists may hold anything that can be pickled; as torch's own messages of objects, ranks trust each other.
    layout, pieces = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=False)
    return Layout.from_state_dict(layout), pieces
