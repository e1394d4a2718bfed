"""Files of arrays, one for each epoch. They are sealed and never half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selective_backprop_lab.files.sealed import read_sealed, write_sealed

Array = NDArray[Any]
_KIND = "arrays 1"


def epoch_file(folder: Path, kind: str, epoch: int) -> Path:
    """Path of the arrays of an epoch.

    >>> epoch_file(Path("run"), "confidence", 3).as_posix()
    'run/confidence-0003.pt'
    """
    return folder / f"{kind}-{epoch:04d}.pt"


def write_arrays(file: Path, **arrays: Array) -> None:
    """Write arrays to a sealed file, each under its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(file, _KIND, {name: torch.from_numpy(array) for name, array in arrays.items()})


def read_epochs(folder: Path, kind: str, **types: str) -> tuple[list[int], list[Array]]:
    """Read the arrays of all epochs, each stacked to (epochs, examples). No code in the files is run.

    Args:
        folder: folder of the files.
        kind: the word before the epoch in their names.
        types: by the name of each array, numpy's letters for the kinds of number that it may hold.

    Raises:
        ValueError: if there is no file, or one is damaged or of another run.
    """
    numbers = [file.stem.rpartition("-")[2] for file in folder.glob(f"{kind}-*.pt")]
    epochs = sorted(int(number) for number in numbers if number.isdecimal() and len(number) < 10)
    if not epochs:
        raise ValueError(f"there is no {folder / f'{kind}-*.pt'}: was it asked for when the run was made?")
    columns: dict[str, list[Array]] = {name: [] for name in types}
    for epoch in epochs:
        with read_sealed(epoch_file(folder, kind, epoch), _KIND) as state:
            for name in types:
                columns[name].append(state[name].numpy())
    for name, arrays in columns.items():
        if len({array.shape for array in arrays}) > 1 or any(array.dtype.kind not in types[name] for array in arrays):
            raise ValueError(f"files {kind}-*.pt in {folder} are damaged or of different runs: {name} does not fit")
    return epochs, [np.stack(arrays) for arrays in columns.values()]
