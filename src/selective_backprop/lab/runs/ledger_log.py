"""The ledger at the end of every epoch, on disk.

# M = examples
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import selective_backprop as sb
from selective_backprop.files.reading import read_json
from selective_backprop.lab.probes.examples import last_known_loss
from selective_backprop.lab.probes.files import (
    Array,
    epoch_file,
    epochs_written,
    read_arrays,
    require_arrays,
    stack,
    write_arrays,
)

if TYPE_CHECKING:
    from selective_backprop.lab.runs.training import Record, Training


@dataclass(frozen=True, eq=False)
class LedgerHistory:
    """The ledger at the end of every epoch from the first on."""

    loss: Array
    """(epochs, M) float16: the last known loss, see `last_known_loss`; NaN if there is none."""
    probability: Array
    """(epochs, M) float16: selection probability at the last decision; NaN if there was none."""
    selected: Array
    """(epochs, M) unsigned: how often the example was selected in that epoch."""


class LedgerLog:
    """Observer that writes ledger/epoch-0003.npz after epoch 3, and so on.

    It takes 5 bytes per example and epoch before compression, so at most 50 MB for 200 epochs of 50,000 examples. (An
    epoch in which an example is selected more than 255 times takes more.)

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, training: Training, record: Record) -> None:
        ledger = training.ledger
        selected = (ledger.selected - training.selected_before).numpy()
        write_arrays(
            epoch_file(self.folder / "ledger", "epoch", record["epoch"]),
            loss=_to_half(last_known_loss(ledger)),
            probability=_to_half(ledger.probability),
            selected=selected.astype(np.min_scalar_type(selected.max())),
        )


def _to_half(values: Tensor) -> Array:
    largest = torch.finfo(torch.float16).max  # a loss above it would become infinite
    return values.clamp(-largest, largest).half().numpy()


def read_ledger_log(folder: Path) -> LedgerHistory:
    """Read what `LedgerLog` wrote for the run in this folder. Raises ValueError if an epoch is missing or damaged."""
    folder = folder / "ledger"
    epochs = range(epochs_written(folder, "epoch")[-1] + 1)
    files = [read_arrays(epoch_file(folder, "epoch", epoch), "loss", "probability", "selected") for epoch in epochs]
    loss, probability, selected = (stack(list(arrays), folder) for arrays in zip(*files, strict=True))
    require_arrays(folder, loss=(loss, "f"), probability=(probability, "f"), selected=(selected, "u"))
    return LedgerHistory(loss, probability, selected)


def _view_seed(folder: Path) -> int | None:
    """The seed of the views of the run in this folder; None if it drew its augmentation one batch after the other."""
    file = folder / "config.json"
    settings = read_json(file) if file.exists() else {}
    options = settings.get("options", {}) if isinstance(settings, dict) else {}
    return options.get("views") if isinstance(options, dict) else None


def read_selections(folder: Path) -> sb.pruning.SelectionRecord:
    """Read what the run in this folder selected in each epoch, and the seed of its views, for `recorded_backprop`."""
    selected = torch.from_numpy(read_ledger_log(folder).selected.astype(bool))
    record = sb.pruning.SelectionRecord(selected.shape[1], _view_seed(folder))
    for mask in selected:
        record.add_ids(mask.nonzero().flatten())
    return record
