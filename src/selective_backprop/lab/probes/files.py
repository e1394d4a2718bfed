"""Files of probes: arrays of one epoch, and rows of all epochs. They are never half-written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selective_backprop.files.reading import open_regular, parse_json, read_bytes
from selective_backprop.files.writing import make_subfolder, write_whole

Array = NDArray[Any]
Row = dict[str, Any]


def epoch_file(folder: Path, kind: str, epoch: int) -> Path:
    """Path of the arrays of an epoch.

    >>> epoch_file(Path("run"), "confidence", 3).as_posix()
    'run/confidence-0003.npz'
    """
    return folder / f"{kind}-{epoch:04d}.npz"


def epochs_written(folder: Path, kind: str) -> list[int]:
    """Epochs that have a file, in rising order. Raises ValueError if there is none."""
    numbers = [file.stem.rpartition("-")[2] for file in folder.glob(f"{kind}-*.npz")]
    epochs = sorted(int(number) for number in numbers if number.isdecimal() and len(number) < 10)
    if not epochs:
        raise ValueError(f"there is no {folder / f'{kind}-*.npz'}: was it asked for when the run was made?")
    return epochs


def write_arrays(file: Path, **arrays: Array) -> None:
    """Write arrays to a compressed file, each under its name."""
    np.savez_compressed(buffer := io.BytesIO(), **arrays)  # type: ignore[arg-type]
    _write(file, buffer.getvalue())


def read_arrays(file: Path, *names: str) -> list[Array]:
    """Read the arrays of these names, without running code. Raises ValueError if the file is missing or damaged."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with open_regular(file) as opened, np.load(opened, allow_pickle=False) as loaded:
            return [loaded[name] for name in names]
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except OSError:
        raise
    except Exception as error:  # zip, zlib and numpy raise many kinds of error
        reason = str(error).partition(". If you trust")[0]  # numpy adds how to run the code in it
        raise ValueError(f"{file} is damaged: {reason}") from None


def stack(arrays: list[Array], folder: Path) -> Array:
    """Stack arrays of all epochs into one, (epochs, examples)."""
    try:
        return np.stack(arrays)
    except ValueError:
        sizes = ", ".join(sorted({str(array.shape) for array in arrays}))
        raise ValueError(f"files in {folder} come from different runs: their arrays have the shapes {sizes}") from None


def replace_rows(file: Path, epoch: int, rows: Iterable[Row]) -> None:
    """Write an epoch's rows. They replace rows from this epoch on, which a resumed run makes again."""
    kept = [row for row in read_rows(file) if row["epoch"] < epoch] if file.exists() else []
    lines = "".join(json.dumps(row) + "\n" for row in [*kept, *rows])
    _write(file, lines.encode())


def read_rows(file: Path, check: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """Read JSON lines, each with an epoch. Raises ValueError if the file is missing or damaged.

    Args:
        file: the file to read.
        check: raises ValueError for a wrong row.
    """
    if not file.exists():
        raise ValueError(f"there is no {file}: was it asked for when the run was made?")
    rows: list[Row] = []
    for number, line in enumerate(read_bytes(file).decode(errors="replace").splitlines(), start=1):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"it is no row: {line:.50}")
            require_number(row, "epoch", least=0, whole=True)
            check(row)
        except ValueError as error:
            raise ValueError(f"{file} is damaged in line {number} ({error}): move it away") from None
        rows.append(row)
    return rows


def require_number(
    row: Row, name: str, *, least: float, most: float = 1e300, whole: bool = False, optional: bool = False
) -> None:
    """Raise ValueError unless the row has a number in this range under this name."""
    value = row.get(name)
    if optional and value is None and name in row:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {kind} of at least {least}, got {value!r:.50}")


def require_columns(row: Row, names: set[str]) -> None:
    """Raise ValueError unless the row has exactly these columns."""
    if different := sorted(map(str, names ^ row.keys())):
        raise ValueError(f"it must have {', '.join(sorted(names))}, and differs in {', '.join(different):.80}")


def require_arrays(folder: Path, **kinds: tuple[Array, str]) -> None:
    """Raise ValueError unless all arrays are (epochs, examples), not empty, and of these kinds of number."""
    shapes = {array.shape for array, _ in kinds.values()}
    for name, (array, kind) in kinds.items():
        if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in kind or len(shapes) > 1:
            raise ValueError(
                f"files in {folder} are damaged: {name} is {array.dtype} of shape {array.shape}, not a number for each "
                "epoch and example"
            )


def _write(file: Path, content: bytes) -> None:
    make_subfolder(
        file.parent.parent, file.parent.name
    )  # refuses links, because the run's folder may come from a stranger
    write_whole({file: content})
