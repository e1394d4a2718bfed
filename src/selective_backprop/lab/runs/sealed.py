"""Sealed files: states in files that contain their own checksum, so that damage is noticed.

Such a file is the zip file that torch.save writes, so that torch.load reads it as any other, with its SHA-256 as the
zip comment: its last 71 bytes are b"sha256:" and the digest, in hexadecimal, of all bytes before them. The digest is in
the file, not beside it: what is copied, renamed or lost is both or neither.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from selective_backprop.files.reading import read_bytes
from selective_backprop.files.states import pack, unpack

_LABEL = b"sha256:"
_COMMENT_SIZE = len(_LABEL) + 64
# The last record of a zip file without a comment: 22 bytes, of which the last two are the comment's length.
_LAST_RECORD, _LAST_RECORD_SIZE, _LENGTH_SIZE = b"PK\x05\x06", 22, 2


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


def read_sealed(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the state in a sealed file. Raises ValueError that says what is wrong with the file."""
    return unseal(read_bytes(path))


def _comment(content: memoryview) -> bytes:
    return _LABEL + hashlib.sha256(content).hexdigest().encode()
