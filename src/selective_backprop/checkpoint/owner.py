"""Which process may save checkpoints to a folder: the first one that did, as long as it lives and needs it."""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path

from selective_backprop.checkpoint import files
from selective_backprop.files.writing import FolderLock, is_locked
from selective_backprop.loader.selective_loader import SelectiveLoader

_PATIENCE = 5.0  # seconds that a save waits for a process that holds the folder, which may be about to end

_owned: dict[str, tuple[FolderLock, set[int]]] = {}
"""Locks that this process holds, by folder, and the ids of the loaders that saved there."""


def begin(folder: Path, loader: SelectiveLoader) -> Path:
    """A new folder for one checkpoint, when the folder of all of them is this process's own."""
    folder.mkdir(parents=True, exist_ok=True)
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
    return files.begin(folder, alone=lock.is_held())


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
