"""Selection records: which examples a run trained on in each epoch, so that other runs can repeat it.

# M = data set
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.saved import read_state, write_state

_KIND = "selection record 1"
_BITS = 2 ** torch.arange(8, dtype=torch.uint8)


class SelectionRecord(Described):
    """The ids selected in each epoch of a run. An epoch takes one bit per example: 6 kB for 50,000 examples.

    A record says whether an example was selected in an epoch, not how often. Weights are not recorded either.

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
        self._masks: list[Tensor] = []  # one bit per example, one tensor per epoch
        self._counts = torch.zeros(num_examples, dtype=torch.int32)  # the ledger's `selected` at the last call of add

    def described_by(self) -> dict[str, Any]:
        masks = torch.stack(self._masks) if self._masks else torch.empty(0)
        return {"num_examples": self.num_examples, "epochs": len(self), "masks": masks}

    def __len__(self) -> int:
        """Return the number of recorded epochs."""
        return len(self._masks)

    def add(self, loader: Any) -> None:
        """Record what a `SelectiveLoader` selected since the last call. Call this after each epoch, on all ranks."""
        selected = loader.ledger.whole().selected
        if len(selected) != self.num_examples:
            raise ValueError(
                f"this record is for {self.num_examples} examples, but the loader's data set has {len(selected)}: make "
                f"it with SelectionRecord({len(selected)})"
            )
        if math.ceil(loader.epochs_done) != len(self) + 1:
            raise ValueError(
                f"record.add must be called once after each epoch, from the start of the run: the record has "
                f"{len(self)} epochs, but the loader has offered {loader.epochs_done:g}"
            )
        self.add_ids((selected > self._counts).nonzero().flatten())
        self._counts = selected.clone()

    def add_ids(self, ids: Tensor) -> None:
        """Record an epoch in which these ids were trained on. Their order does not matter."""
        if ids.dim() != 1 or ids.dtype != torch.int64:
            raise ValueError(f"ids must be a 1-D int64 tensor, got {ids.dtype} of shape {tuple(ids.shape)}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_examples:
            raise ValueError(
                f"ids must be in [0, {self.num_examples}), got {int(ids.min())} to {int(ids.max())}: they belong to "
                "another data set"
            )
        mask = torch.zeros(-(-self.num_examples // 8) * 8, dtype=torch.uint8)
        mask[ids.cpu()] = 1
        self._masks.append((mask.view(-1, 8) * _BITS).sum(1, dtype=torch.uint8))

    def mask(self, epoch: int) -> Tensor:
        """Return (M,) bool by id: whether each example was selected in this epoch. Epochs count from 0."""
        if not 0 <= epoch < len(self):
            raise ValueError(f"epoch {epoch} is not in the record, which has {len(self)} epochs")
        bits = self._masks[epoch][:, None] & _BITS
        return bits.bool().flatten()[: self.num_examples]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to a file: plain data and their checksums.

        If writing fails, there is an OSError and no partial file. A run that is resumed from a checkpoint can go on
        with the record that was saved together with it.
        """
        masks = torch.stack(self._masks) if self._masks else torch.zeros(0, -(-self.num_examples // 8))
        write_state(path, _KIND, {"masks": masks.to(torch.uint8), "counts": self._counts})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SelectionRecord:
        """Read a record that `save` wrote. Raises ValueError if the file is damaged."""
        state = read_state(path, _KIND)
        masks, counts = state["masks"], state["counts"]
        record = cls(len(counts))
        record.add_ids(torch.empty(0, dtype=torch.int64))
        if masks.shape[1:] != record._masks[0].shape or masks.dtype != torch.uint8:
            raise ValueError("it has no bit for each example and epoch")
        record._masks = list(masks)
        record._counts = record._counts.copy_(counts)
        return record
