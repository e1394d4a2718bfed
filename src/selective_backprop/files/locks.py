"""Locks on folders, which end with their process in whatever way it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


def lock_folder(folder: Path, *, patience: float = 0, name: str = ".lock") -> FileLock:
    """Take the lock of a folder. It is held until it is released or this process ends.

    The lock is on the file `.lock` in the folder. Nothing is ever written to it, and it stays there. A process that is
    forked from this one, such as a worker of a DataLoader, does not hold the lock and cannot release it.

    Args:
        folder: the folder to lock. It must exist.
        patience: seconds to wait for another process that holds the lock and may be about to end.
        name: name of the lock file.

    Raises:
        Timeout: another process holds the lock.
        OSError: the lock file is a link, a pipe or the like. It may come from a stranger, so it is not used.
    """
    file = folder / name
    if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
        raise OSError(f"{file} must be a regular file to lock the folder, and is none: remove it")
    lock = FileLock(file, thread_local=False)  # one lock for all threads of the process
    lock.acquire(timeout=patience, poll_interval=0.05)
    return lock


@contextmanager
def locked_folder(folder: Path, *, patience: float, name: str = ".lock") -> Iterator[None]:
    """Hold the lock of a folder within the block. The arguments are those of `lock_folder`."""
    lock = lock_folder(folder, patience=patience, name=name)
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path, *, name: str = ".lock") -> bool:
    """Whether a process holds the folder's lock now."""
    if not (folder / name).exists():
        return False
    try:
        lock_folder(folder, name=name).release()
    except Timeout:
        return True
    except OSError:
        return False  # the folder cannot be written to, or the file is no lock
    return False
