"""Files beside a run that are never half-written: arrays of one epoch, and rows of all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selective_backprop.lab.writing import write_whole

Array = NDArray[Any]
Row = dict[str, Any]


def epoch_file(folder: Path, kind: str, epoch: int) -> Path:
    """Where the arrays of an epoch are.

    >>> epoch_file(Path("run"), "confidence", 3).as_posix()
    'run/confidence-0003.npz'
    """
    return folder / f"{kind}-{epoch:04d}.npz"


def epochs_written(folder: Path, kind: str) -> list[int]:
    """Epochs that have a file, rising; a ValueError if there is none."""
    epochs = sorted(int(file.stem.rpartition("-")[2]) for file in folder.glob(f"{kind}-*.npz"))
    if not epochs:
        raise ValueError(f"there is no {folder / f'{kind}-*.npz'}: was it asked for when the run was made?")
    return epochs


def write_arrays(file: Path, **arrays: Array) -> None:
    """Compressed, each under its name."""
    np.savez_compressed(buffer := io.BytesIO(), **arrays)  # type: ignore[arg-type]
    _write(file, buffer.getvalue())


def read_arrays(file: Path, *names: str) -> list[Array]:
    """The arrays of these names; a ValueError if the file is missing or damaged. No code in it is run."""
    try:
        # Opened here: numpy leaves a damaged file open.
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as loaded:
            return [loaded[name] for name in names]
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except OSError:
        raise
    except Exception as error:  # zip, zlib and numpy raise many kinds, depending on where the file stops making sense
        raise ValueError(f"{file} is damaged: {error}") from None


def stack(arrays: list[Array], folder: Path) -> Array:
    """(epochs, examples)."""
    try:
        return np.stack(arrays)
    except ValueError:
        sizes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise ValueError(f"files in {folder} are of different runs: their arrays are of shapes {sizes}") from None


def replace_rows(file: Path, epoch: int, rows: Iterable[Row]) -> None:
    """Add an epoch's rows in place of those from this epoch on, which a run that was resumed does again."""
    kept = [row for row in read_rows(file) if row["epoch"] < epoch] if file.exists() else []
    lines = "".join(json.dumps(row) + "\n" for row in [*kept, *rows])
    _write(file, lines.encode())


def read_rows(file: Path) -> list[Row]:
    """JSON lines, each with an epoch; a ValueError if the file is missing or damaged."""
    if not file.exists():
        raise ValueError(f"there is no {file}: was it asked for when the run was made?")
    rows: list[Row] = []
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append(row | {"epoch": int(row["epoch"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is damaged in line {number} ({error!r}): move it away") from None
    return rows


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole({file: content})
