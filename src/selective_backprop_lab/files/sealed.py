"""States of runs in files with checksums, so that damage is noticed. No code in them is run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selective_backprop.saved import read_state, write_state


def write_sealed(path: Path, kind: str, state: dict[str, Any]) -> None:
    """Write a state of plain data and tensors; see `selective_backprop.saved.write_state`."""
    try:
        write_state(path, kind, state)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def read_sealed(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Read what `write_sealed` wrote, and use its state within the block.

    Raises ValueError that names the file: if it is damaged, is of another kind, or holds what the block does not expect
    and stumbles over.
    """
    state = read_state(path, kind)
    try:
        yield state
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold what it should: {error!s:.300}") from error
