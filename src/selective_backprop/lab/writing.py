"""Files that are whole or not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path


def write_whole(contents: Mapping[Path, bytes | memoryview], *, keep: Mapping[Path, Path] | None = None) -> None:
    """Write files under other names, then rename them: each is whole, and none is replaced before all are written.

    Args:
        contents: by file, renamed in this order.
        keep: other names for what was there before, by file.
    """
    parts = {path: path.with_name(f"{path.name}.part") for path in contents}
    try:
        for path, part in parts.items():
            with part.open("wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())  # or a crash of the machine could leave the new name on an empty file
        for path, part in parts.items():
            if keep and path in keep and path.exists():
                path.replace(keep[path])
            part.replace(path)
        for folder in {path.parent for path in contents}:
            _sync_names(folder)
    except OSError as error:
        needed = sum(len(content) for content in contents.values())
        reason = f"{error.strerror}; {needed:,} bytes are needed, and what was there before is unchanged"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _sync_names(folder: Path) -> None:
    """New names survive a crash of the machine too, where the file system can promise it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # folders on some network file systems
            raise
    finally:
        os.close(descriptor)
