"""Locks on folders, which end with their process in whatever way it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class FolderLock:
    """The lock of a folder, held until it is released or this process ends.

    The lock is on the file `.lock` in the folder, which stays there. A process that is forked from this one, such as a
    worker of a DataLoader, does not hold the lock and cannot release it. Where a file system has no locks, the file
    itself is the lock: it names its process, and stays behind if that is killed on another machine.

    Args:
        folder: the folder to lock. It must exist.
        patience: seconds to wait for another process that holds the lock and may be about to end.
        name: name of the lock file.

    Raises:
        Timeout: another process holds the lock.
        OSError: the folder cannot be locked, or the lock file is a link, a pipe or the like. It may come from a
            stranger, so it is not used.
    """

    def __init__(self, folder: Path, *, patience: float = 0, name: str = ".lock") -> None:
        self._file = folder / name
        if os.path.lexists(self._file) and not stat.S_ISREG(self._file.lstat().st_mode):
            raise OSError(f"{self._file} must be a regular file to lock the folder, and is none: remove it")
        self._lock = FileLock(self._file, thread_local=False)  # one lock for all threads of the process
        try:
            self._lock.acquire(timeout=patience, poll_interval=0.05)
            self._status = self._file.lstat()
        except Timeout:
            raise
        except OSError as error:
            raise OSError(
                error.errno,
                f"this folder cannot be locked ({error.strerror}), so that another process could write to it at the "
                "same time: choose a folder on another file system",
                str(folder),
            ) from error

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock of the folder that is there now, and not of one that was removed."""
        try:
            return self._lock.is_locked and os.path.samestat(self._file.lstat(), self._status)
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._lock.release(force=True)


@contextmanager
def locked_folder(folder: Path, *, patience: float, name: str = ".lock") -> Iterator[None]:
    """Hold the lock of a folder within the block. The arguments are those of `FolderLock`."""
    lock = FolderLock(folder, patience=patience, name=name)
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path, *, name: str = ".lock") -> bool:
    """Whether a process holds the folder's lock now."""
    if not (folder / name).exists():
        return False
    try:
        FolderLock(folder, name=name).release()
    except Timeout:
        return True
    except OSError:
        return False  # the folder cannot be written to, or the file is no lock
    return False
