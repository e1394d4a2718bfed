"""Folders that are complete or not there: checkpoints on disk, whatever happens while one is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

_NAME, _UNFINISHED, _CHECKSUMS = "checkpoint-", ".unfinished", "checksums.json"
_KEPT = 2  # the newest, and the one before in case that the newest turns out to be damaged


def numbers(folder: Path) -> list[int]:
    """Of the checkpoints in the folder, the newest first."""
    found = [path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*")]
    return sorted((int(number) for number in found if number.isdecimal()), reverse=True)


def path_of(folder: Path, number: int) -> Path:
    """Where the checkpoint of this number is."""
    return folder / f"{_NAME}{number}"


def begin(folder: Path) -> Path:
    """An empty folder to write the next checkpoint to; what an interrupted one left is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{_NAME}*{_UNFINISHED}"):
        shutil.rmtree(path)
    path = unfinished(folder)
    path.mkdir()
    return path


def unfinished(folder: Path) -> Path:
    """Where the next checkpoint is written to."""
    return folder / f"{_NAME}{max(numbers(folder), default=0) + 1}{_UNFINISHED}"


def commit(written: Path, checksums: dict[str, str]) -> None:
    """Make what was written the newest checkpoint, and remove those that are not needed any more."""
    with (written / _CHECKSUMS).open("w") as file:
        json.dump(checksums, file, indent=1, sort_keys=True)
        sync(file.fileno())
    sync_folder(written)
    folder = written.parent
    written.rename(folder / written.name.removesuffix(_UNFINISHED))  # at once, for everyone who looks
    sync_folder(folder)
    for number in numbers(folder)[_KEPT:]:
        shutil.rmtree(path_of(folder, number))


def checksum(path: Path) -> str:
    """By which a file is known to be as it was written."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_of(path: Path) -> dict[str, str]:
    """Of each file of a checkpoint when it was written; ValueError where that cannot be read."""
    try:
        found = json.loads((path / _CHECKSUMS).read_text())
    except (OSError, ValueError) as error:  # a bit may have made it invalid JSON, or invalid text
        raise ValueError(f"{path / _CHECKSUMS} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found or any(name != os.path.basename(name) for name in found):
        raise ValueError(f"{path / _CHECKSUMS} is not a list of files")
    return found


def damaged(path: Path, expected: dict[str, str], names: Iterable[str]) -> list[str]:
    """Which of these files are not as they were written."""
    return [name for name in names if not (path / name).is_file() or checksum(path / name) != expected[name]]


def sync(descriptor: int) -> None:
    """Have it on the disk, not only on its way there: a power cut must not leave a checkpoint that is half empty."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """The names in it, too."""
    if os.name == "nt":
        return  # there is no such call, and no need for it
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
