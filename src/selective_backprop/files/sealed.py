"""Sealed files: states in files that contain their own checksum, so that damage is noticed.

Such a file is the zip file that torch.save writes, so that torch.load reads it as any other, with its SHA-256 as the
zip comment: its last 71 bytes are b"sha256:" and the digest, in hexadecimal, of all bytes before them. The digest is in
the file, not beside it: what is copied, renamed or lost is both or neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selective_backprop.files.reading import read_bytes
from selective_backprop.files.states import pack, unpack
from selective_backprop.files.writing import write_whole

_LABEL = b"sha256:"
_COMMENT_SIZE = len(_LABEL) + 64
# The last record of a zip file without a comment: 22 bytes, of which the last two are the comment's length.
_LAST_RECORD, _LAST_RECORD_SIZE, _LENGTH_SIZE = b"PK\x05\x06", 22, 2


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
    content = pack(state)
    assert bytes(content[-_LAST_RECORD_SIZE:]).startswith(_LAST_RECORD), "torch.save has written a comment of its own"
    content[-_LENGTH_SIZE:] = _COMMENT_SIZE.to_bytes(_LENGTH_SIZE, "little")
    return b"".join([content, _comment(content)])


def unseal(content: bytes) -> dict[str, Any]:
    """Read a sealed state; its tensors are on the CPU. Raises ValueError if it is damaged. No code in it is run."""
    comment = content[-_COMMENT_SIZE:]
    if not comment.startswith(_LABEL):
        raise ValueError("it does not end with a checksum" if content else "it is empty")
    if comment != _comment(memoryview(content)[:-_COMMENT_SIZE]):
        raise ValueError("its checksum does not match its content")
    state = unpack(content)  # a right checksum does not make it a state
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}")
    return state


def _comment(content: memoryview) -> bytes:
    return _LABEL + hashlib.sha256(content).hexdigest().encode()
