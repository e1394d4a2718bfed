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

from selective_backprop.ledger import Ledger
from selective_backprop_lab.probes.files import Array, epoch_file, read_epochs, write_arrays

if TYPE_CHECKING:
    from selective_backprop_lab.runs.training import Record, Training


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
    """Observer that writes ledger/epoch-0003.pt after epoch 3, and so on.

    It takes 5 bytes per example and epoch so 50 MB for 200 epochs of 50,000 examples. (An
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


def last_known_loss(ledger: Ledger) -> Tensor:
    """Each example's last training loss, or its last score if that is from a later epoch; NaN if it has neither.

    If both are from the same epoch, the loss is taken: it is nearly always newer, because candidates are scored first.
    A score is the loss, unless the method measures something else (distance_backprop, kath18).

    >>> ledger = Ledger(3)
    >>> ledger.record_losses(torch.tensor([0, 1]), torch.tensor([0.5, 1.5]), epoch=0)
    >>> ledger.record_scores(torch.tensor([1]), torch.tensor([2.5]), epoch=1)
    >>> last_known_loss(ledger)
    tensor([0.5000, 2.5000,    nan])
    """
    return torch.where(ledger.loss_epoch >= ledger.score_epoch, ledger.loss, ledger.score)


def _to_half(values: Tensor) -> Array:
    largest = torch.finfo(torch.float16).max  # a loss above it would become infinite
    return values.clamp(-largest, largest).half().numpy()


def read_ledger_log(folder: Path) -> LedgerHistory:
    """Read what `LedgerLog` wrote for the run in this folder. Raises ValueError if an epoch is missing or damaged."""
    folder = folder / "ledger"
    epochs, arrays = read_epochs(folder, "epoch", loss="f", probability="f", selected="u")
    if epochs != list(range(len(epochs))):
        raise ValueError(f"{folder} has the epochs {epochs}, and not all from 0 on")
    return LedgerHistory(*arrays)
