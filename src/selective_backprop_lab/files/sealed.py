"""Sealed files: states in files that contain their own checksum, so that damage is noticed.

Such a file is the zip file that torch.save writes, so that torch.load reads it as any other, with its SHA-256 as the
zip comment: its last 71 bytes are b"sha256:" and the digest, in hexadecimal, of all bytes before them. The digest is in
the file, not beside it: what is copied, renamed or lost is both or neither.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from selective_backprop_lab.files.reading import read_bytes
from selective_backprop_lab.files.writing import write_whole

_LABEL = b"sha256:"
_COMMENT_SIZE = len(_LABEL) + 64
# The last record of a zip file without a comment: 22 bytes, of which the last two are the comment's length.
_LAST_RECORD, _LAST_RECORD_SIZE, _LENGTH_SIZE = b"PK\x05\x06", 22, 2
_BLOCK = 2**20  # bytes that are read at a time
_FIRST = b"PK\x03\x04"  # torch.load takes a zip file that begins otherwise for a pickle
_MADE_TENSOR = b"\nTensor\n"  # a call of torch.Tensor, which makes a tensor of any size
_MOST_PER_BYTE = 10  # values per byte of the pickle; more than one only if a list or tuple is in several others
_DEEPEST = 100  # levels of lists and dicts; states have fewer than twenty


def write_sealed(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write a state to a sealed file. If writing fails, there is an OSError and no partial file.

    Args:
        path: the file.
        kind: what the state is and the version of its format, such as "scores 1".
        state: plain data and tensors.
    """
    write_whole({Path(path): seal({**state, "kind": kind})})


@contextmanager
def read_sealed(path: str | os.PathLike[str], kind: str) -> Iterator[dict[str, Any]]:
    """Read what `write_sealed` wrote, and use its state within the block.

    Raises ValueError that names the file: if it is damaged, is of another kind, or holds what the block does not expect
    and stumbles over.
    """
    name = os.fspath(path)
    try:
        state = unseal(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{name} is damaged, or was not written by this package: {error}") from error
    if state.get("kind") != kind:
        raise ValueError(f"{name} holds {state.get('kind')!r:.80}, where {kind!r} is expected")
    try:
        yield state
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{name} does not hold what it should: {error!s:.300}") from error


def seal(state: dict[str, Any]) -> bytes:
    """Turn a state into the content of a sealed file.

    >>> unseal(seal({"epoch": 3}))
    {'epoch': 3}
    """
    _seal_to(file := io.BytesIO(), state)
    return file.getvalue()


def unseal(content: bytes) -> dict[str, Any]:
    """Read a sealed state; its tensors are on the CPU. Raises ValueError if it is damaged. No code in it is run."""
    _check(file := io.BytesIO(content))
    return _load(file)


# ---- the format


def _seal_to(file: BinaryIO, state: dict[str, Any]) -> None:
    torch.save(tree_map(_without_the_rest, state), file)
    size = file.tell()
    file.seek(size - _LAST_RECORD_SIZE)
    assert file.read(len(_LAST_RECORD)) == _LAST_RECORD, "torch.save has written a comment of its own"
    file.seek(size - _LENGTH_SIZE)
    file.write(_COMMENT_SIZE.to_bytes(_LENGTH_SIZE, "little"))
    file.write(_comment(file, size))


def _check(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _COMMENT_SIZE))
    comment = file.read()
    if not comment.startswith(_LABEL):
        raise ValueError("it does not end with a checksum" if comment else "it is empty")
    if comment != _comment(file, size - _COMMENT_SIZE):
        raise ValueError("its checksum does not match its content")


def _comment(file: BinaryIO, size: int) -> bytes:
    """Return the comment that belongs to the first `size` bytes of a file."""
    digest, left = hashlib.sha256(), size
    file.seek(0)
    while left and (part := file.read(min(left, _BLOCK))):
        digest.update(part)
        left -= len(part)
    return _LABEL + digest.hexdigest().encode()


def _load(file: BinaryIO) -> dict[str, Any]:
    """Read the state of a file. A right checksum does not make it a state.

    A state takes no more memory than its bytes: what a stranger compressed, or claims to be larger, is refused.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as opened:
            entries = opened.infolist()
            if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > size:
                raise ValueError("it would become larger than the file")
            pickles = b"".join(opened.read(entry) for entry in entries if entry.filename.endswith(".pkl"))
        file.seek(0)
        if file.read(len(_FIRST)) != _FIRST or _MADE_TENSOR in pickles:
            raise ValueError("torch.save did not write it, or it has a tensor without its numbers")
        file.seek(0)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds, depending on where the content stops making sense
        raise ValueError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}")
    for value in _leaves(state, _MOST_PER_BYTE * len(pickles)):
        if isinstance(value, Tensor) and (_is_unusual(value) or value.nbytes > value.untyped_storage().nbytes()):
            raise ValueError(f"it has a tensor of shape {tuple(value.shape)} without a number for each entry")
    return state


def _leaves(state: Any, most: int) -> Iterator[Any]:
    """Go through what a state holds. Raises ValueError if it is more than `most`, or nested too deep.

    A pickle has a list only once, however often it is in others: a kilobyte can hold more than anybody can go through.
    """
    levels = [iter([state])]
    while levels:
        for value in levels[-1]:
            most -= 1 + (len(value) if isinstance(value, bytearray) else 0)
            if most < 0:
                raise ValueError("it holds far more than it has bytes")
            if len(levels) > _DEEPEST:
                raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
            if isinstance(value, (dict, list, tuple, set)):
                levels.append(chain(value, value.values()) if isinstance(value, dict) else iter(value))
                break
            yield value
        else:
            levels.pop()


def _without_the_rest(value: Any) -> Any:
    """Copy a slice: torch.save would write the whole tensor that it belongs to. Expanded tensors get all entries.

    Attributes that somebody gave a tensor are left out.
    """
    if type(value) is Tensor and value.__dict__:
        value = value.detach()
    if not isinstance(value, Tensor) or _is_unusual(value) or value.nbytes == value.untyped_storage().nbytes():
        return value
    return value.detach().clone(memory_format=torch.contiguous_format)


def _is_unusual(value: Tensor) -> bool:
    """Whether a tensor has no storage with a number for each entry."""
    return value.layout != torch.strided or value.is_meta or value.is_nested
