"""Padding: puts sequences of different lengths into one training batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from selective_backprop.rows import entries, with_entries

Side = Literal["right", "left"]
Pad = Callable[[list[Any]], list[Any]]
"""A function that gives batches the same shape, except for their number of rows."""


def pad_to_longest(values: Mapping[Any, float], *, side: Side = "right") -> PadToLongest:
    """Make the `pad=` of SelectiveLoader: it pads batches of sequences to the length of the longest.

    Use it if your collate function pads each batch to its longest sequence. Candidate batches then have different
    lengths, and examples selected from them must share a training batch.

    Args:
        values: the fill value for each entry to pad: by its key in a dict, by its position in a tuple or list, by its
            name in a dataclass. Other entries are left as they are.
        side: where to pad, as the tokenizer does.

    >>> import torch
    >>> pad = pad_to_longest({"input_ids": 0, "labels": -100})
    >>> short, long = {"input_ids": torch.ones(1, 2)}, {"input_ids": torch.ones(2, 3)}
    >>> pad([short, long])[0]["input_ids"]
    tensor([[1., 1., 0.]])
    >>> pad_to_longest({0: 9})([(torch.ones(1, 2), torch.ones(1)), (torch.ones(2, 3), torch.ones(2))])[0]
    (tensor([[1., 1., 9.]]), tensor([1.]))
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"values must be a fill value for each entry, such as {{'input_ids': 0}}, got {values!r:.100}")
    return PadToLongest(dict(values), side)


@dataclass(frozen=True)
class PadToLongest:
    """Pads batches to the length of the longest, and cuts padding off again. Made by `pad_to_longest`."""

    values: dict[Any, float]
    """The fill value of each entry to pad."""
    side: Side = "right"
    """Where to pad."""

    def __post_init__(self) -> None:
        if self.side not in ("right", "left"):
            raise ValueError(f"side must be 'right' or 'left', got {self.side!r}")

    def __call__(self, batches: list[Any]) -> list[Any]:
        columns = [entries(batch) for batch in batches]
        keys = self._keys(batches[0], columns[0])
        length = {key: max(c[key].shape[1] for c in columns) for key in keys if columns[0][key].dim() > 1}
        padded = [{key: self._fill(c[key], key, length[key]) for key in length} for c in columns]
        return [with_entries(batch, parts) for batch, parts in zip(batches, padded, strict=True)]

    def lengths(self, batch: Any) -> Tensor:
        """Return the length of each example: up to its last position at which some entry is not padding.

        >>> import torch
        >>> pad = pad_to_longest({0: 0, 1: -100})
        >>> pad.lengths((torch.tensor([[5, 6, 0], [5, 0, 0]]), torch.tensor([[-100, 6, 0], [-100, -100, -100]])))
        tensor([3, 1])
        """
        columns = entries(batch)
        sequences = [key for key in self._keys(batch, columns) if columns[key].dim() > 1]
        if not sequences:
            raise ValueError(f"none of the entries {list(self.values)} of the batches is a sequence: all have one axis")
        used = None
        for key in sequences:
            column = columns[key] != self.values[key]
            column = column.flatten(2).any(2) if column.dim() > 2 else column
            used = column if used is None else used | column
        assert used is not None
        places = torch.arange(1, used.shape[1] + 1, device=used.device)
        lengths: Tensor = (used * (places if self.side == "right" else places.flip(0))).amax(1)
        return lengths

    def trim(self, batch: Any, length: int) -> Any:
        """Cut all sequences of the batch to this length, on the side of the padding."""
        columns = entries(batch)
        keys = [key for key in self._keys(batch, columns) if columns[key].dim() > 1]
        part = slice(None, length) if self.side == "right" else slice(-length, None)
        return with_entries(batch, {key: columns[key][:, part] for key in keys})

    def _keys(self, batch: Any, columns: Mapping[Any, Any]) -> list[Any]:
        """List the entries to pad. Raises if there are none, or if one is not a tensor."""
        keys = [key for key in columns if key in self.values]
        if not keys:
            raise ValueError(
                f"pad_to_longest was told how to fill {list(self.values)}, but the batches, of type "
                f"{type(batch).__name__}, have the entries {list(columns)}: name those to pad"
            )
        for key in keys:
            if not isinstance(columns[key], Tensor):
                kind = type(columns[key]).__name__
                raise TypeError(f"pad_to_longest pads tensors, but the entry {key!r} of the batches is a {kind}")
        return keys

    def _fill(self, column: Tensor, key: Any, length: int) -> Tensor:
        missing = length - column.shape[1]
        rest = [0, 0] * (column.dim() - 2)  # F.pad begins with the last dimension; sequences go along the second
        return F.pad(column, [*rest, *((missing, 0) if self.side == "left" else (0, missing))], value=self.values[key])
