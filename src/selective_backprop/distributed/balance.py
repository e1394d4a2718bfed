"""Moving waiting examples between ranks, so that equally many wait on each."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Layout, move
from selective_backprop.distributed.ranks import Ranks

Move = tuple[int, int, int]
"""(giving rank, receiving rank, number of examples)"""

NO_BYTES = torch.empty(0, dtype=torch.uint8)


def moves_to_even_out(lengths: list[int]) -> list[Move]:
    """Find the moves that make all queues equally long, give or take one, and move as few examples as possible.

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


def even_columns(columns: list[Tensor], counts: list[int], ranks: Ranks) -> list[Tensor]:
    """Move rows between ranks until all have equally many, give or take one. All ranks must call this.

    Args:
        columns: tensors with one entry per row. Rows leave from the end and are added at the end.
        counts: number of rows on each rank.
        ranks: the ranks.
    """
    leaving = [(to, count) for giver, to, count in moves_to_even_out(counts) if giver == ranks.rank]
    stay, result = counts[ranks.rank] - sum(count for _, count in leaving), []
    for column in columns:
        parts, begin = [column[:0]] * ranks.size, stay
        for to, count in leaving:
            parts[to] = column[begin : begin + count]
            begin += count
        result.append(torch.cat([column[:stay], *ranks.exchange(parts)]))
    return result


def pack(layout: Layout, pieces: list[Any]) -> torch.Tensor:
    """Turn pieces of a queue into bytes. A piece has its columns first, then tensors with one entry per example."""
    cpu = torch.device("cpu")
    rows = [[[move(column, cpu) for column in columns], *notes] for columns, *notes in pieces]
    # torch.save would write the whole tensor that a slice belongs to; a clone has the slice alone.
    rows = torch.utils._pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, rows)
    buffer = io.BytesIO()
    torch.save([layout.state_dict(), rows], buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> tuple[Layout, list[Any]]:
    """Read pieces that `pack` made on another rank."""
    # Lists may hold anything that can be pickled. Ranks trust each other, as in torch's own messages of objects.
    layout, pieces = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=False)
    return Layout.from_state_dict(layout), pieces
