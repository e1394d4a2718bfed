"""Checksums of states in memory, by which a state that was changed since it was saved is noticed."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

_KEY = "checksum"


def signed(state: dict[str, Any]) -> dict[str, Any]:
    """Add the checksum of a state to it. It replaces an earlier one.

    >>> state = signed({"epoch": 3})
    >>> is_signed(state), is_signed({**state, "epoch": 4})
    (True, False)
    """
    return {**state, _KEY: _checksum({**state, _KEY: None}, 0)}


def is_signed(state: dict[str, Any]) -> bool:
    """Whether the state has the checksum of its content."""
    return type(state.get(_KEY)) is int and state[_KEY] == _checksum({**state, _KEY: None}, 0)


def _checksum(value: Any, start: int) -> int:
    """Compute the CRC-32 of plain data and tensors, which takes about a second for two gigabytes."""
    if isinstance(value, Tensor):
        start = zlib.crc32(f"{value.dtype} {tuple(value.shape)}".encode(), start)
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return zlib.crc32(content.data, start) if len(content) else start
    if isinstance(value, dict):
        start = zlib.crc32(f"dict {len(value)}".encode(), start)
        for key in sorted(value, key=repr):
            start = _checksum(value[key], zlib.crc32(repr(key).encode(), start))
        return start
    if isinstance(value, (list, tuple)):
        start = zlib.crc32(f"list {len(value)}".encode(), start)
        for item in value:
            start = _checksum(item, start)
        return start
    # What a state may hold beside plain data, such as the examples of an odd collate function, counts by its kind.
    known = value is None or isinstance(value, (bool, int, float, str, bytes))
    return zlib.crc32((repr(value) if known else type(value).__name__).encode(), start)
