"""Locks on folders, which end with their process in whatever way it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def locked_folder(folder: Path, *, patience: float = 0.0, name: str = ".lock") -> Iterator[None]:
    """Hold the lock of a folder within the block, which is on a file in it.

    patience: seconds to wait for another process that holds the lock. Then it raises filelock.Timeout.
    """
    with FileLock(folder / name, timeout=patience, thread_local=False):  # one lock for all threads of the process
        yield
