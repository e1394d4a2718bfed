"""Which examples a run trained on in each epoch, for other runs to repeat.

# M = data set
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.files.reading import read_bytes
from selective_backprop.files.states import pack, unpack
from selective_backprop.files.writing import write_whole

_FILE_VERSION = 1
_BITS = 2 ** torch.arange(8, dtype=torch.uint8)


class Selecting(Protocol):
    """What a record reads of a SelectiveLoader."""

    @property
    def ledger(self) -> AnyLedger: ...

    @property
    def epochs_done(self) -> float: ...


class SelectionRecord(Described):
    """The ids selected in each epoch of a run: a bit per example and epoch, 6 kB an epoch for 50,000 examples.

    Whether an example was selected is kept, not how often: what a method draws twice in an epoch is in it once.
    Weights are not kept either.

    Args:
        num_examples: M.

    >>> record = SelectionRecord(5)
    >>> record.add_ids(torch.tensor([4, 0, 4]))
    >>> record.mask(0).tolist()
    [True, False, False, False, True]
    """

    def __init__(self, num_examples: int) -> None:
        if not isinstance(num_examples, int) or num_examples < 1:
            raise ValueError(f"num_examples must be a whole number >= 1, got {num_examples!r}")
        self.num_examples = num_examples
        self._masks: list[Tensor] = []  # packed, one per epoch
        self._counts = torch.zeros(num_examples, dtype=torch.int32)  # the loader's, when last seen

    def described_by(self) -> dict[str, Any]:
        masks = torch.stack(self._masks) if self._masks else torch.empty(0)
        return {"num_examples": self.num_examples, "epochs": len(self), "masks": masks}

    def __len__(self) -> int:
        """Epochs recorded."""
        return len(self._masks)

    def add(self, loader: Selecting) -> None:
        """Record what the loader selected since the last call; to be called after each epoch, by all ranks."""
        selected = loader.ledger.whole().selected
        if len(selected) != self.num_examples:
            raise ValueError(f"this record is of {self.num_examples} examples, the loader's ledger of {len(selected)}")
        if math.ceil(loader.epochs_done) != len(self) + 1:
            raise ValueError(
                f"a record follows a run from its start, one call after each epoch: it holds {len(self)} epochs, and "
                f"the loader has offered {loader.epochs_done:g}"
            )
        self.add_ids((selected > self._counts).nonzero().flatten())
        self._counts = selected.clone()

    def add_ids(self, ids: Tensor) -> None:
        """Record an epoch by the ids that were trained on, in any order."""
        if ids.dim() != 1 or ids.dtype != torch.int64:
            raise ValueError(f"ids must be a 1-D int64 tensor, got {ids.dtype} of shape {tuple(ids.shape)}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_examples:
            raise ValueError(
                f"ids must be in [0, {self.num_examples}), got {int(ids.min())} to {int(ids.max())}: they are of "
                "another data set"
            )
        mask = torch.zeros(-(-self.num_examples // 8) * 8, dtype=torch.uint8)
        mask[ids.cpu()] = 1
        self._masks.append((mask.view(-1, 8) * _BITS).sum(1, dtype=torch.uint8))

    def mask(self, epoch: int) -> Tensor:
        """(M,) bool by id: whether it was selected in this epoch, from 0."""
        if not 0 <= epoch < len(self):
            raise ValueError(f"epoch {epoch} is not in the record, which has {len(self)} epochs")
        bits = self._masks[epoch][:, None] & _BITS
        return bits.bool().flatten()[: self.num_examples]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file of plain data, loadable with weights_only=True: all of it, or an OSError and none of it.

        A run that is resumed can go on with the record saved with its checkpoint.
        """
        masks = torch.stack(self._masks) if self._masks else torch.zeros(0, -(-self.num_examples // 8))
        state = {"version": _FILE_VERSION, "masks": masks.to(torch.uint8), "counts": self._counts}
        write_whole({Path(path): pack(state)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SelectionRecord:
        """Read a record that `save` wrote."""
        not_a_record = f"{os.fspath(path)} is not a file written by SelectionRecord.save"
        try:
            state = unpack(read_bytes(path))
        except ValueError as error:
            raise ValueError(not_a_record) from error
        if not isinstance(state, dict) or not all(isinstance(state.get(name), Tensor) for name in ("masks", "counts")):
            raise ValueError(not_a_record)
        if state.get("version") != _FILE_VERSION:
            raise ValueError(f"{os.fspath(path)} has version {state.get('version')}, expected {_FILE_VERSION}")
        record = cls(len(state["counts"]))
        record._masks, record._counts = list(state["masks"]), state["counts"]
        return record
