"""Writing files that are complete or not there at all, without following links."""

from __future__ import annotations

import csv
import errno
import io
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def write_whole(contents: Mapping[Path, bytes | memoryview]) -> None:
    """Write files under temporary names, then rename them. So each is complete, and all are written before any rename.

    No link is followed: a link in the place of the file is replaced by the file, and its target stays as it is.

    Args:
        contents: the content of each file. Files are renamed in this order.

    Raises:
        OSError: with the file, the bytes needed and the bytes free. What was there before is unchanged, and nothing
            half-written is left.
    """
    parts = {path: path.with_name(f"{path.name}.part") for path in contents}
    written: dict[Path, os.stat_result] = {}  # of temporary files: tells ours from those of another process
    path = next(iter(parts), Path())
    try:
        for path, part in parts.items():
            _require_replaceable(path)
            written[part] = _write_new(part, contents[path])
        for path, part in parts.items():
            if not _is_same(part, written[part]):
                raise FileExistsError(errno.EEXIST, "another process is writing this file at the same time")
            part.replace(path)
        for folder in {path.parent for path in contents}:
            sync_folder(folder)
    except OSError as error:
        needed = sum(memoryview(content).nbytes for content in contents.values())
        raise with_free_space(
            error, path, f"{needed:,} bytes are needed, and what was there before is unchanged"
        ) from error
    finally:
        for part, status in written.items():
            if _is_same(part, status):
                part.unlink(missing_ok=True)


def append(path: Path, line: bytes) -> None:
    """Add a line to the end of a file, which is made if it is not there. Its last line gets its end if it has none.

    Raises OSError, and leaves the file as it was, at a link, which is not followed, and if there is no room.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o666)
    with open(descriptor, "a+b", buffering=0) as file:  # a buffer would be written again when the file is closed
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            line = line if file.read() == b"\n" else b"\n" + line
        try:
            left = memoryview(line)
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            file.truncate(size)
            needs = f"{len(line):,} bytes are needed, and what was there before is unchanged"
            raise with_free_space(error, path, needs) from error


def write_table(file: str | Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length to a CSV file, with their names in the first line. NaN becomes an empty field."""
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow("" if value != value else value for value in row)  # NaN is not equal to itself
    write_whole({Path(file): lines.getvalue().encode()})


def open_new(path: Path) -> int:
    """Create a file and return its descriptor. A file or link of that name is removed first, not followed."""
    with suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)


def _write_new(path: Path, content: bytes | memoryview) -> os.stat_result:
    descriptor = open_new(path)
    status = os.fstat(descriptor)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash of the machine could leave an empty file under the new name
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return status


def _is_same(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.lstat(), status)
    except OSError:
        return False


def _require_replaceable(path: Path) -> None:
    """Raise if the path is a device, a pipe or a folder, or a link to one: these are never replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return  # nothing, or a link that leads nowhere
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "this is not a regular file, so it is not replaced: name another one")


def with_free_space(error: OSError, path: Path, needs: str = "") -> OSError:
    """Return the error with the path, what was needed, and how much space is free there."""
    told = [part for part in (error.strerror or str(error), needs) if part]
    with suppress(OSError):
        told.append(f"{shutil.disk_usage(path.parent).free:,} bytes are free there")
    return OSError(error.errno or errno.EIO, "; ".join(told), str(path))


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a crash of the machine, if the file system can promise it."""
    if os.name == "nt":
        return  # there is no such call, and no need for it
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # folders on some network file systems
            raise
    finally:
        os.close(descriptor)


def make_subfolder(outer: Path, name: str) -> Path:
    """Make a folder within another one, or find it there. Raises at a link, which may lead out of `outer`.

    `outer` itself may be a link, because the user named it.
    """
    path = outer
    outer.mkdir(parents=True, exist_ok=True)
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise OSError(
                errno.ELOOP, "this is a link, which may lead out of the folder that it is in: remove it", str(path)
            )
        path.mkdir(exist_ok=True)
    return path
