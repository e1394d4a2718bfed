"""Checkpoints that tell whether they are whole.

A checkpoint is the zip file that torch.save writes, so that torch.load reads it as any other, with its SHA-256 as the
zip comment: its last 71 bytes are b"sha256:" and the digest, in hexadecimal, of all bytes before them. In the file, not
beside it: what is copied, renamed or lost is both or neither.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from selective_backprop.files.reading import read_bytes

_LABEL = b"sha256:"
_COMMENT_SIZE = len(_LABEL) + 64
# The last record of a zip file without a comment: 22 bytes, of which the last two are the comment's length.
_LAST_RECORD, _LAST_RECORD_SIZE, _LENGTH_SIZE = b"PK\x05\x06", 22, 2


def to_bytes(state: dict[str, Any]) -> bytes:
    """What to write.

    >>> from_bytes(to_bytes({"epoch": 3}))
    {'epoch': 3}
    """
    # In memory: of a full disk, torch.save says only that it came to an unexpected position.
    torch.save(state, buffer := io.BytesIO())
    content = bytearray(buffer.getbuffer())
    assert content[-_LAST_RECORD_SIZE:].startswith(_LAST_RECORD), "torch.save has written a comment of its own"
    content[-_LENGTH_SIZE:] = _COMMENT_SIZE.to_bytes(_LENGTH_SIZE, "little")
    return bytes(content + _LABEL + hashlib.sha256(content).hexdigest().encode())


def from_bytes(content: bytes) -> dict[str, Any]:
    """The state, or a ValueError that says what is wrong. No code in it is run."""
    body, comment = content[:-_COMMENT_SIZE], content[-_COMMENT_SIZE:]
    if not comment.startswith(_LABEL):
        raise ValueError("it does not end with a checksum" if content else "it is empty")
    if comment != _LABEL + hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its checksum is of other content")
    try:
        # On the CPU: a run may go on where there is no GPU; load_state_dict copies to where parameters are.
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many kinds; a right checksum does not make it a checkpoint
        raise ValueError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from None
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}")
    return state


def read_checkpoint(file: Path) -> dict[str, Any]:
    """The state in a file, or a ValueError that says what is wrong with it."""
    return from_bytes(read_bytes(file))
