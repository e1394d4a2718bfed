"""Converts states of plain data and tensors to bytes and back. Reading them runs no code, whoever wrote them."""

from __future__ import annotations

import io
from typing import Any

import torch


def pack(state: Any) -> memoryview:
    """Return the bytes of the zip file that torch.save would write.

    >>> unpack(pack({"epoch": 3}))
    {'epoch': 3}
    """
    # Made in memory first: if the disk is full, torch.save only complains about an unexpected position.
    torch.save(state, buffer := io.BytesIO())
    return buffer.getbuffer()


def unpack(content: bytes | memoryview) -> Any:
    """Read a state; its tensors are on the CPU. Raises ValueError, with the reason, for anything but a plain state."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds, depending on where the content stops making sense
        raise ValueError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
