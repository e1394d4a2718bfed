"""Writing files that are complete or not there at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path


def write_whole(contents: Mapping[Path, bytes]) -> None:
    """Write files under temporary names, then rename them. So each is complete, and all are written before any rename.

    Raises OSError with the file, for example if the disk is full. What was there before is unchanged then.
    """
    parts = {path: path.with_name(f"{path.name}.part") for path in contents}
    try:
        for path, part in parts.items():
            try:
                with part.open("wb") as file:
                    file.write(contents[path])
                    file.flush()
                    os.fsync(file.fileno())  # or a crash of the machine could leave an empty file under the new name
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
        for path, part in parts.items():
            part.replace(path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def append(path: Path, line: bytes) -> None:
    """Add a line to the end of a file, which is made if it is not there. Its last line gets its end if it has none."""
    with path.open("ab+", buffering=0) as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            line = line if file.read() == b"\n" else b"\n" + line
        if file.write(line) < len(line):  # half a line would be damage
            file.truncate(size)
            raise OSError(errno.ENOSPC, "there is no room for another line", str(path))
