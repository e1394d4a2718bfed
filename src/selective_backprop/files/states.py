"""Converts states of plain data and tensors to bytes and back. Reading them runs no code, whoever wrote them."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def pack(state: Any) -> memoryview:
    """Return the bytes of the zip file that torch.save would write.

    >>> unpack(pack({"epoch": 3}))
    {'epoch': 3}
    """
    # Made in memory first: if the disk is full, torch.save only complains about an unexpected position.
    torch.save(tree_map(_without_the_rest, state), buffer := io.BytesIO())
    return buffer.getbuffer()


def unpack(content: bytes | memoryview) -> Any:
    """Read a state; its tensors are on the CPU. Raises ValueError, with the reason, for anything but a plain state.

    A state takes no more memory than its bytes: what a stranger compressed, or claims to be larger, is refused.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            entries = file.infolist()
        if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("it would become larger than the file")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds, depending on where the content stops making sense
        raise ValueError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    for value in tree_leaves(state):
        if isinstance(value, Tensor) and (_is_unusual(value) or value.nbytes > value.untyped_storage().nbytes()):
            raise ValueError(f"it has a tensor of shape {tuple(value.shape)} without a number for each entry")
    return state


def _without_the_rest(value: Any) -> Any:
    """Copy a slice: torch.save would write the whole tensor that it belongs to. Expanded tensors get all entries."""
    if not isinstance(value, Tensor) or _is_unusual(value) or value.nbytes == value.untyped_storage().nbytes():
        return value
    return value.detach().clone(memory_format=torch.contiguous_format)


def _is_unusual(value: Tensor) -> bool:
    """Whether a tensor has no storage with a number for each entry."""
    return value.layout != torch.strided or value.is_meta or value.is_nested
