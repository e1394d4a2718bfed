"""The log of training dynamics: one row of 16 bytes per example and epoch in which it was trained on.

# M = examples in the data set, E = epochs
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selective_backprop.saved import read_state, write_state

Array = NDArray[Any]
ROW = np.dtype([("id", "<u4"), ("loss", "<f4"), ("margin", "<f4"), ("confidence", "<f2"), ("other", "<u2")])
"""A row of the log: id, loss, margin, probability of the label, and best class other than the label (`class_values`).
NaN and `NO_CLASS` stand for what is not known."""
NO_CLASS = 2**16 - 1
_KIND = "dynamics 1"
_MOST_EPOCHS = 100_000  # a stranger's file with one epoch of a larger number would ask for terabytes
FILE = "dynamics.pt"
"""Name of the file in the folder of a run."""


class Dynamics:
    """What training steps said about each example, in every epoch in which it was trained on.

    The log only grows. With several ranks, each rank records the examples that it trains on, and nothing is sent during
    training. The loader's `dynamics` brings the rows of all ranks together.

    Args:
        num_examples: M. Ids go from 0 to M - 1.

    >>> dynamics = Dynamics(3)
    >>> dynamics.record(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=0)
    >>> dynamics.matrix("loss").tolist()
    [[1.5, nan, 0.5]]
    """

    def __init__(self, num_examples: int) -> None:
        if num_examples < 1:
            raise ValueError(f"num_examples must be at least 1, got {num_examples}")
        self.labels: Array = np.full(num_examples, -1, dtype=np.int32)
        """(M,) the class with which each example was trained; -1 if it is not known."""
        self._rows: dict[int, list[Array]] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Dynamics({len(self):,} examples, {len(self._rows)} epochs, {self.num_rows:,} rows)"

    @property
    def num_rows(self) -> int:
        """Number of rows. Each takes 16 bytes."""
        return sum(len(part) for parts in self._rows.values() for part in parts)

    @property
    def epochs(self) -> range:
        """All epochs up to the last one with a row. An epoch in between may have none."""
        return range(max(self._rows, default=-1) + 1)

    def record(self, ids: Tensor, losses: Tensor, epoch: int, values: Tensor | None = None) -> None:
        """Add the examples of a training step. All tensors are on the CPU.

        Args:
            ids: (N,) their ids.
            losses: (N,) their losses.
            epoch: the epoch of the step, from 0.
            values: (N, 4) as `class_values` computes them; None if the outputs were not those of a classification.
        """
        rows = np.empty(len(ids), dtype=ROW)
        rows["id"], rows["loss"] = ids.numpy(), losses.numpy()
        if values is None:
            rows["margin"] = rows["confidence"] = np.nan
            rows["other"] = NO_CLASS
        else:
            margins, confidences, others, labels = values.numpy().T
            rows["margin"], rows["confidence"] = margins, confidences
            rows["other"] = np.nan_to_num(others, nan=NO_CLASS).clip(max=NO_CLASS)
            self.labels[rows["id"]] = np.nan_to_num(labels, nan=-1)
        self._rows.setdefault(epoch, []).append(rows)

    def add_labels(self, labels: Array) -> None:
        """Add the labels that another rank has seen; -1 where it has seen none."""
        self.labels = np.maximum(self.labels, labels)

    def rows(self, epoch: int) -> Array:
        """Return the rows of an epoch, in the order in which they were recorded."""
        parts = self._rows.get(epoch, [])
        if len(parts) > 1:
            self._rows[epoch] = parts = [np.concatenate(parts)]
        return parts[0] if parts else np.empty(0, dtype=ROW)

    def matrix(self, name: str) -> Array:
        """Return a column as (E, M) float32; NaN where the example was not seen. Of several rows, the last counts.

        Raises ValueError if that is far more than there are rows and examples.
        """
        if (size := len(self.epochs) * len(self)) > 1000 * self.num_rows + 100 * len(self):
            raise ValueError(
                f"the dynamics have {self.num_rows:,} rows of {len(self):,} examples, but epochs up to "
                f"{self.epochs[-1]:,}: a table of them would take {4 * size:,} bytes. Their epochs are damaged, or not "
                "those of a run: record them anew"
            )
        result = np.full((len(self.epochs), len(self)), np.nan, dtype=np.float32)
        for epoch in self.epochs:
            rows = self.rows(epoch)
            values = rows[name].astype(np.float32)
            if name == "other":
                values[rows["other"] == NO_CLASS] = np.nan
            result[epoch, rows["id"]] = values
        return result

    def counts(self) -> Array:
        """Return in how many epochs each example was trained on: (M,) int64."""
        return sum(
            (np.bincount(np.unique(self.rows(epoch)["id"]), minlength=len(self)) for epoch in self.epochs),
            start=np.zeros(len(self), dtype=np.int64),
        )

    # ---- joining, saving

    def add_rows(self, rows: Array, epoch: int) -> None:
        """Add rows of another log of the same examples, such as that of another rank."""
        if len(rows):
            self._rows.setdefault(epoch, []).append(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, as tensors of bytes."""
        rows = {epoch: rows_to_bytes(self.rows(epoch)) for epoch in sorted(self._rows)}
        return {"labels": torch.from_numpy(self.labels.copy()), "rows": rows}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a saved state does not fit this log."""
        if state["labels"].dim() != 1 or state["labels"].dtype != torch.int32:
            raise ValueError(f"labels must be one int32 per example, got {state['labels'].dtype}")
        if wrong := [epoch for epoch in state["rows"] if type(epoch) is not int or not 0 <= epoch < _MOST_EPOCHS]:
            raise ValueError(f"epochs must be whole numbers from 0 to {_MOST_EPOCHS - 1:,}, got {wrong[0]!r:.50}")
        if len(state["labels"]) != len(self):
            raise ValueError(
                f"the saved dynamics are of {len(state['labels'])} examples, but the data set has {len(self)}: were "
                "they saved for another data set, or has this one changed?"
            )
        for epoch, rows in state["rows"].items():
            ids = rows_from_bytes(rows)["id"]
            if len(ids) and ids.max() >= len(self):
                raise ValueError(
                    f"the saved dynamics of epoch {epoch} are damaged: id {ids.max()}, of {len(self)} examples"
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_state_dict(state)
        self.labels = state["labels"].numpy().copy()
        self._rows = {epoch: [rows_from_bytes(rows).copy()] for epoch, rows in state["rows"].items()}

    def save(self, file: str | Path) -> None:
        """Write the log to a file, which is never half-written."""
        write_state(file, _KIND, self.state_dict())

    @classmethod
    def load(cls, file: str | Path) -> Dynamics:
        """Read a log that `save` wrote, without running code. Raises ValueError if it is damaged."""
        state = read_state(file, _KIND)
        dynamics = cls(len(state["labels"]))
        dynamics.load_state_dict(state)
        return dynamics


def divide(states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
    """Make the part of `rank` of `size` from the states that other ranks saved. Every row goes to exactly one rank."""
    labels = torch.stack([state["labels"] for state in states]).amax(0)
    rows: dict[int, Tensor] = {}
    for epoch in sorted({epoch for state in states for epoch in state["rows"]}):
        parts = [state["rows"][epoch].view(-1, ROW.itemsize) for state in states if epoch in state["rows"]]
        rows[epoch] = torch.cat(parts).tensor_split(size)[rank].reshape(-1)
    return {"labels": labels, "rows": rows}


def rows_to_bytes(rows: Array) -> Tensor:
    """Return rows as a tensor of bytes, which can be saved and sent."""
    return torch.from_numpy(rows.view(np.uint8).copy())


def rows_from_bytes(rows: Tensor) -> Array:
    """Return the rows in a tensor of bytes. Raises ValueError if these are not rows."""
    if rows.dtype != torch.uint8 or rows.dim() != 1 or len(rows) % ROW.itemsize:
        raise ValueError(f"rows must be bytes, {ROW.itemsize} for each, got {rows.dtype} of shape {tuple(rows.shape)}")
    return rows.contiguous().numpy().view(ROW)
