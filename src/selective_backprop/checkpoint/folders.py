"""A folder of checkpoints: each is complete or not there at all, and only one process at a time adds new ones.

The folder belongs to the first process that saves to it, until that process ends.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import warnings
from pathlib import Path

from filelock import Timeout

from selective_backprop.files.locks import FolderLock, is_locked
from selective_backprop.files.writing import sync_folder, with_free_space

_NAME, _UNFINISHED = "checkpoint-", ".unfinished"
_KEPT = 2  # the newest checkpoint, and the one before in case the newest is damaged
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")  # as `path_of` writes it: checkpoint-007 is not ours
_HIGHEST = 10**18 - 1


def numbers(folder: Path) -> list[int]:
    """List the numbers of the checkpoints in the folder, the newest first. Raises ValueError if it is another path."""
    if os.path.lexists(folder / "rank-0.pt"):
        raise ValueError(f"{folder} is one checkpoint, not the folder of them: pass {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not the folder of the checkpoints: pass the folder, or another path")
    found = (path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*"))
    return sorted((int(text) for text in found if _NUMBER.fullmatch(text)), reverse=True)


def path_of(folder: Path, number: int) -> Path:
    """Return the path of the checkpoint with this number."""
    return folder / f"{_NAME}{number}"


# ---- ownership of the folder

PATIENCE = 5.0
"""Seconds that a save waits for a process that holds the folder, which may be about to end."""

_owned: dict[str, FolderLock] = {}
"""The locks that this process holds, by folder."""


def _own(folder: Path) -> None:
    """Take the folder for this process. Raises RuntimeError if another process has it."""
    key = os.path.realpath(folder)
    # A forked process does not hold the lock of its parent. If the folder was removed, the lock went with it.
    if key in _owned and _owned[key].is_held:
        return
    try:
        _owned[key] = FolderLock(folder, patience=PATIENCE)
    except Timeout:
        raise RuntimeError(
            f"another process saves its checkpoints to {folder}, and still did after {PATIENCE:g} seconds: end it, or "
            f"save to another folder. (On a file system without locks: if it was killed, remove {folder / '.lock'})"
        ) from None


def warn_of_others(folder: Path) -> None:
    """Warn the caller of load_checkpoint if another process owns the folder."""
    if os.path.realpath(folder) not in _owned and is_locked(folder):
        warnings.warn(
            f"another process saves its checkpoints to {folder}: this process can load them, but it cannot save there "
            "before the other one ends",
            stacklevel=4,
        )


# ---- adding a checkpoint

damaged: set[str] = set()
"""Checkpoints that this process could not read. They do not count among those that are kept."""


def begin(folder: Path) -> Path:
    """Make an empty folder to write the next checkpoint to. No other process knows its name.

    folder: the folder of checkpoints. It is made if it does not exist, and belongs to this process from now on.
    """
    if _HIGHEST in numbers(folder):
        raise FileExistsError(f"no checkpoint can follow {path_of(folder, _HIGHEST)}: remove it, or save elsewhere")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _own(folder)
        path = _unfinished(folder)
        path.mkdir()
    except OSError as error:
        raise with_free_space(error, folder) from error
    for left in folder.glob(f"{_NAME}*{_UNFINISHED}"):
        if left != path:
            _remove(left)
    return path


def _unfinished(folder: Path) -> Path:
    return folder / f"{_NAME}{secrets.token_hex(8)}{_UNFINISHED}"


def discard(written: Path) -> None:
    """Remove a checkpoint that was not finished."""
    shutil.rmtree(written, ignore_errors=True)


def commit(written: Path) -> None:
    """Make the folder that was written the newest checkpoint, and remove old ones."""
    folder = written.parent
    sync_folder(written)
    path = path_of(folder, max(numbers(folder), default=0) + 1)
    written.rename(path)  # never replaces another checkpoint
    sync_folder(folder)
    damaged.discard(os.path.realpath(path))
    sound = [number for number in numbers(folder) if os.path.realpath(path_of(folder, number)) not in damaged]
    for number in numbers(folder):
        if number < sound[:_KEPT][-1]:
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
