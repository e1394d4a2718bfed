"""Files of the library: states of plain data and tensors, and tables. Each is complete or not there at all.

Such a file is what torch.save writes, so that torch.load(weights_only=True) reads it. It is a zip file, which has a CRC
of each of its entries. torch does not check these; this module does.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


def write_state(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write a state of plain data and tensors to a file.

    kind: what the state is and the version of its format, such as "scores 1".
    """
    # Copies, as torch.save would write the whole tensor that a slice belongs to.
    whole = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, state)
    torch.save({**whole, "kind": kind}, content := io.BytesIO())
    _write(Path(path), content.getvalue())


def read_state(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read what `write_state` wrote, without running code.

    Raises ValueError that names the file if it is damaged or of another kind.
    """
    content = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if (damaged := file.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
        state: dict[str, Any] = torch.load(io.BytesIO(content), "cpu", weights_only=True)
        found = state["kind"]
    except Exception as error:  # of many kinds, depending on where the content stops making sense
        raise ValueError(f"{os.fspath(path)} is damaged, or was not written by this package: {error!s:.300}") from error
    if found != kind:
        raise ValueError(f"{os.fspath(path)} holds {found!r:.80}, where {kind!r} is expected")
    return state


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length to a CSV file, with their names in the first line. NaN becomes an empty field."""
    writer = csv.writer(lines := io.StringIO(), lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow("" if value != value else value for value in row)  # NaN is not equal to itself
    _write(Path(path), lines.getvalue().encode())


def _write(path: Path, content: bytes) -> None:
    """Write a file under another name, and rename it when it is on the disk."""
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
