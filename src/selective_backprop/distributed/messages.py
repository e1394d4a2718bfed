"""Messages of plain data between ranks. No code in a message is run. A process that trains alone sends none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selective_backprop.distributed.ranks import Ranks
from selective_backprop.files.states import pack, unpack


def gather(ranks: Ranks, value: Any) -> list[Any]:
    """Return every rank's value, by rank. JSON must be able to hold the value. All ranks must call this."""
    if ranks.size == 1:
        return [value]
    text = json.dumps(value, default=str).encode()
    return [json.loads(_as_bytes(part)) for part in ranks.gather(_as_tensor(text))]


def collect(ranks: Ranks, state: Any) -> list[Any]:
    """Return every rank's state on rank 0, and an empty list on the others. All ranks must call this.

    state: plain data and tensors.
    """
    parts = [_as_tensor(b"")] * ranks.size
    if ranks.rank > 0:
        parts[0] = _as_tensor(pack(state))
    others = ranks.exchange(parts)[1:]
    return [state, *(unpack(_as_bytes(part)) for part in others)] if ranks.rank == 0 else []


def hand_out(ranks: Ranks, states: Sequence[Any]) -> Any:
    """Hand out the states in rank 0's list, one to each rank: the inverse of `collect`. All ranks must call this."""
    parts = [_as_tensor(b"")] * ranks.size
    if ranks.rank == 0:
        parts[1:] = [_as_tensor(pack(state)) for state in states[1:]]
    received = ranks.exchange(parts)[0]
    return states[0] if ranks.rank == 0 else unpack(_as_bytes(received))


def _as_tensor(message: bytes | memoryview) -> Tensor:
    # frombuffer takes neither an empty buffer nor one that cannot be written to.
    return torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


def _as_bytes(message: Tensor) -> bytes:
    return message.numpy().tobytes()
