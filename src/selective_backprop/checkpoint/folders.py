"""A folder of checkpoints: each is complete or not there at all, and only one process at a time adds new ones.

The folder belongs to the first process that saves to it, until that process ends or its loader is deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path

from filelock import Timeout

from selective_backprop.files.locks import FolderLock, is_locked
from selective_backprop.files.reading import open_regular, read_json
from selective_backprop.files.writing import sync_folder, with_free_space, write_whole

_NAME, _UNFINISHED, _CHECKSUMS = "checkpoint-", ".unfinished", "checksums.json"
_KEPT = 2  # the newest checkpoint, and the one before in case the newest is damaged
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")  # as `path_of` writes it: checkpoint-007 is not ours
_HIGHEST = 10**18 - 1


def numbers(folder: Path) -> list[int]:
    """List the numbers of the checkpoints in the folder, the newest first."""
    found = (path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*"))
    return sorted((int(text) for text in found if _NUMBER.fullmatch(text)), reverse=True)


def path_of(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint with this number."""
    return folder / f"{_NAME}{number}"


# ---- ownership of the folder

PATIENCE = 5.0
"""Seconds that a save waits for a process that holds the folder, which may be about to end."""

_owned: dict[str, tuple[FolderLock, set[int]]] = {}
"""By folder: the lock that this process holds, and the ids of the loaders that saved there."""


def _own(folder: Path, loader: object) -> None:
    """Take the folder for this process until the loader is deleted. Raises RuntimeError if another process has it."""
    key = os.path.realpath(folder)
    lock, users = _owned.get(key, (None, set()))
    # A forked process does not hold the lock of its parent. If the folder was removed, the lock went with it.
    if lock is None or not lock.is_held:
        try:
            _owned[key] = FolderLock(folder, patience=PATIENCE), users
        except Timeout:
            raise RuntimeError(
                f"another process saves its checkpoints to {folder}, and still did after {PATIENCE:g} seconds: end "
                f"it, or save to another folder. (On a file system without locks: if it was killed, remove "
                f"{folder / '.lock'})"
            ) from None
    if id(loader) not in users:
        users.add(id(loader))
        weakref.finalize(loader, _release, key, id(loader)).atexit = False


def _release(key: str, user: int) -> None:
    """Free the folder for other processes when all loaders that saved to it are deleted."""
    lock, users = _owned[key]
    users.discard(user)
    if not users:
        lock.release()
        del _owned[key]


def warn_of_others(folder: Path) -> None:
    """Warn the caller of load_checkpoint if another process owns the folder."""
    if os.path.realpath(folder) not in _owned and is_locked(folder):
        warnings.warn(
            f"another process saves its checkpoints to {folder}: this process can load them, but it cannot save there "
            "before the other one ends",
            stacklevel=4,
        )


# ---- adding a checkpoint


def begin(folder: Path, loader: object) -> Path:
    """Make an empty folder to write the next checkpoint to. No other process knows its name.

    Args:
        folder: the folder of checkpoints. It is made if it does not exist.
        loader: the loader to save. The folder belongs to this process until the loader is deleted.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _own(folder, loader)
        path = _unfinished(folder)
        path.mkdir()
    except OSError as error:
        raise with_free_space(error, folder) from error
    if _HIGHEST in numbers(folder):
        raise FileExistsError(f"no checkpoint can follow {path_of(folder, _HIGHEST)}: remove it, or save elsewhere")
    for left in folder.glob(f"{_NAME}*{_UNFINISHED}"):
        if left != path:
            _remove(left)
    return path


def _unfinished(folder: Path) -> Path:
    return folder / f"{_NAME}{secrets.token_hex(8)}{_UNFINISHED}"


def discard(written: Path) -> None:
    """Remove a checkpoint that was not finished."""
    shutil.rmtree(written, ignore_errors=True)


def commit(written: Path, checksums: dict[str, str]) -> None:
    """Make the folder that was written the newest checkpoint, and remove old ones."""
    write_whole({written / _CHECKSUMS: json.dumps(checksums, indent=1, sort_keys=True).encode()})
    folder = written.parent
    for _ in range(100):
        path = path_of(folder, max(numbers(folder), default=0) + 1)
        try:
            written.rename(path)  # atomic for other processes, and never replaces another checkpoint
            break
        except OSError:
            if not os.path.lexists(path):
                raise  # otherwise another process, on a file system without locks, was first with this number
    else:
        raise FileExistsError(
            f"other checkpoints appear in {folder} faster than this one can be added: does another run save there?"
        )
    sync_folder(folder)
    for number in numbers(folder)[_KEPT:]:
        _remove(path_of(folder, number))


def _remove(path: Path) -> None:
    """Remove a checkpoint. A link is removed, not its target."""
    try:
        path = path.rename(_unfinished(path.parent))  # who reads it finds it gone at once, not piece by piece
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    except OSError as error:
        warnings.warn(f"{path} is not needed any more and cannot be removed: {error}", stacklevel=2)


# ---- reading one


def checksum(path: Path) -> str:
    """SHA-256 of the file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_of(path: Path) -> dict[str, str]:
    """Read the SHA-256 of each file of a checkpoint. Raises ValueError if the list cannot be read."""
    try:
        found = read_json(path / _CHECKSUMS)
    except (OSError, ValueError) as error:  # a bit may have made it invalid JSON, or invalid text
        raise ValueError(f"{path / _CHECKSUMS} cannot be read: {error}") from error
    names_only = isinstance(found, dict) and all(name and name == os.path.basename(name) for name in found)
    if not found or not names_only or not all(isinstance(text, str) for text in found.values()):
        raise ValueError(f"{path / _CHECKSUMS} is not a list of files")
    return dict(found)


def damaged(path: Path, expected: dict[str, str], names: Iterable[str]) -> list[str]:
    """List those of these files that are damaged: missing, or with another checksum than expected."""
    return [name for name in names if not (path / name).is_file() or checksum(path / name) != expected[name]]
