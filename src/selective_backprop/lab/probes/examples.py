"""Some training examples followed through a run (figure 15 of Jiang et al. 2019)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from selective_backprop.lab.probes.files import Row, read_rows, replace_rows, require_columns, require_number
from selective_backprop.ledger import Ledger

if TYPE_CHECKING:
    from selective_backprop.lab.runs.training import Record, Training


@dataclass(frozen=True, kw_only=True)
class ExampleState:
    """An example at the end of an epoch, as the ledger knows it."""

    epoch: int
    id: int
    loss: float | None
    """Last known loss, see `last_known_loss`; None if the example was neither scored nor trained on."""
    probability: float | None
    """Selection probability at the last decision; None if there was none."""


class ExampleProbe:
    """Records loss and selection probability of five examples, spread over the data set, at the end of every epoch.

    Args:
        folder: folder of the run; rows go to probes/examples.jsonl.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, training: Training, record: Record) -> None:
        ledger, epoch = training.ledger, record["epoch"]
        ids = spread(len(ledger))
        losses, probabilities = last_known_loss(ledger)[ids].tolist(), ledger.probability[ids].tolist()
        states = [
            ExampleState(epoch=epoch, id=id, loss=_known(loss), probability=_known(probability))
            for id, loss, probability in zip(ids, losses, probabilities, strict=True)
        ]
        replace_rows(_file(self.folder), epoch, map(dataclasses.asdict, states))


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


def spread(num_examples: int, count: int = 5) -> list[int]:
    """Ids spread evenly from the first to the last.

    >>> spread(101), spread(2)
    ([0, 25, 50, 75, 100], [0, 1])
    """
    return sorted({i * (num_examples - 1) // (count - 1) for i in range(count)})


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value  # JSON has no NaN


def read_examples(folder: Path) -> list[ExampleState]:
    """Read what `ExampleProbe` wrote for the run in this folder."""
    return [ExampleState(**row) for row in read_rows(_file(folder), _check)]


def _check(row: Row) -> None:
    require_columns(row, {field.name for field in dataclasses.fields(ExampleState)})
    require_number(row, "id", least=0, whole=True)
    require_number(row, "loss", least=-1e300, optional=True)
    require_number(row, "probability", least=0, most=1, optional=True)


def _file(folder: Path) -> Path:
    return folder / "probes" / "examples.jsonl"
