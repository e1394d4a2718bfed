"""A folder of checkpoints: each is complete or not there, and only one process at a time adds to them.

The folder belongs to the first process that saves to it, as long as that process lives and its loader is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from selective_backprop.files.reading import open_regular, read_json
from selective_backprop.files.writing import FolderLock, is_locked, locked_itself, sync_folder, write_whole

_NAME, _UNFINISHED, _CHECKSUMS = "checkpoint-", ".unfinished", "checksums.json"
_KEPT = 2  # the newest, and the one before in case that the newest turns out to be damaged
_MOST_DIGITS = 18


def numbers(folder: Path) -> list[int]:
    """Numbers of the checkpoints in the folder, the newest first."""
    found = [path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*")]
    return sorted((int(text) for text in found if text.isdecimal() and len(text) <= _MOST_DIGITS), reverse=True)


def path_of(folder: Path, number: int) -> Path:
    """Where the checkpoint of this number is."""
    return folder / f"{_NAME}{number}"


# ---- whose folder it is

_PATIENCE = 5.0  # seconds that a save waits for a process that holds the folder, which may be about to end

_owned: dict[str, tuple[FolderLock, set[int]]] = {}
"""Locks that this process holds, by folder, and the ids of the loaders that saved there."""


def _own(folder: Path, loader: object) -> FolderLock:
    """Take the folder for this process until the loader is deleted. RuntimeError if another process has it."""
    key = os.path.realpath(folder)
    lock, users = _owned.get(key, (None, set()))
    if lock is None or not lock.is_held():
        try:
            lock = FolderLock(folder, patience=_PATIENCE)
        except BlockingIOError:
            raise RuntimeError(
                f"another process saves its checkpoints to {folder}, and still did after {_PATIENCE:g} seconds: end "
                "it, or save to another folder"
            ) from None
        _owned[key] = lock, users
    if id(loader) not in users:
        users.add(id(loader))
        weakref.finalize(loader, _release, key, id(loader)).atexit = False
    return lock


def _release(key: str, user: int) -> None:
    """Without the loaders that saved there, the folder is free for others."""
    lock, users = _owned[key]
    users.discard(user)
    if not users:
        lock.close()
        del _owned[key]


def warn_of_others(folder: Path) -> None:
    """Warn the caller of load_checkpoint if another process owns the folder."""
    if os.path.realpath(folder) not in _owned and is_locked(folder):
        warnings.warn(
            f"another process saves its checkpoints to {folder}: this one can load them, and not save there as long "
            "as that one lives",
            stacklevel=4,
        )


# ---- adding a checkpoint


def begin(folder: Path, loader: object) -> Path:
    """Make an empty folder to write the next checkpoint to. No other process knows its name.

    Args:
        folder: of the checkpoints, made if it is not there.
        loader: whose checkpoint it is. The folder belongs to this process until the loader is deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Where there are no locks, what looks left over may be another process's, still being written.
    for path in folder.glob(f"{_NAME}*{_UNFINISHED}") if _own(folder, loader).is_held() else ():
        _remove(path)
    path = folder / f"{_NAME}{secrets.token_hex(8)}{_UNFINISHED}"
    path.mkdir()
    return path


def discard(written: Path) -> None:
    """Remove what was written in vain."""
    shutil.rmtree(written, ignore_errors=True)


def commit(written: Path, checksums: dict[str, str]) -> None:
    """Make what was written the newest checkpoint, and remove those that are not needed any more."""
    write_whole({written / _CHECKSUMS: json.dumps(checksums, indent=1, sort_keys=True).encode()})
    folder = written.parent
    for _ in range(100):
        path = path_of(folder, max(numbers(folder), default=0) + 1)
        try:
            written.rename(path)  # at once, for everyone who looks; never over another checkpoint
            break
        except OSError:
            if not os.path.lexists(path):
                raise  # otherwise another process, on a file system without locks, was first with this number
    else:
        raise FileExistsError(
            f"{folder} gets new checkpoints faster than one can be added: does another run save there?"
        )
    sync_folder(folder)
    for number in numbers(folder)[_KEPT:]:
        _remove(path_of(folder, number))


def _remove(path: Path) -> None:
    """Remove a checkpoint that nobody is reading; a link is removed, not what it leads to."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        with locked_itself(path, shared=False) as locked:
            if locked:  # else a later save removes it
                shutil.rmtree(path)
    except OSError as error:
        warnings.warn(f"{path} is not needed any more and cannot be removed: {error}", stacklevel=2)


# ---- reading one


@contextmanager
def reading(path: Path) -> Iterator[bool]:
    """Meanwhile nobody removes this checkpoint. False if it was removed already, or is being removed."""
    with ExitStack() as stack:
        try:
            is_there = stack.enter_context(locked_itself(path, shared=True)) and path.is_dir()
        except FileNotFoundError:
            is_there = False
        yield is_there


def checksum(path: Path) -> str:
    """SHA-256 of the file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_of(path: Path) -> dict[str, str]:
    """SHA-256 of each file when the checkpoint was written. Raises ValueError if the list cannot be read."""
    try:
        found = read_json(path / _CHECKSUMS)
    except (OSError, ValueError) as error:  # a bit may have made it invalid JSON, or invalid text
        raise ValueError(f"{path / _CHECKSUMS} cannot be read: {error}") from error
    names_only = isinstance(found, dict) and all(name and name == os.path.basename(name) for name in found)
    if not found or not names_only or not all(isinstance(text, str) for text in found.values()):
        raise ValueError(f"{path / _CHECKSUMS} is not a list of files")
    return dict(found)


def damaged(path: Path, expected: dict[str, str], names: Iterable[str]) -> list[str]:
    """Which of these files are not as they were written."""
    return [name for name in names if not (path / name).is_file() or checksum(path / name) != expected[name]]
