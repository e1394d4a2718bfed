"""Sequences of different lengths in one training batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

Pad = Callable[[list[Any]], list[Any]]
"""Makes batches the same shape, but for their number of rows."""


def pad_to_longest(values: Mapping[str, float], *, side: Literal["right", "left"] = "right") -> Pad:
    """For `SelectiveLoader(pad=...)`: brings dict batches of sequences to the length of the longest among them.

    A collate function that pads to the longest of its batch makes candidate batches of different lengths, whose
    selected examples are to share a training batch.

    Args:
        values: what to fill each entry of the batch with, by its key. Others are left as they are.
        side: where to pad, as the tokenizer does.

    >>> import torch
    >>> pad = pad_to_longest({"input_ids": 0, "labels": -100})
    >>> short, long = {"input_ids": torch.ones(1, 2)}, {"input_ids": torch.ones(2, 3)}
    >>> pad([short, long])[0]["input_ids"]
    tensor([[1., 1., 0.]])
    """
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}")

    def pad(batches: list[Any]) -> list[Any]:
        keys = [key for key in batches[0] if key in values and batches[0][key].dim() > 1]
        length = {key: max(batch[key].shape[1] for batch in batches) for key in keys}
        return [
            type(batch)({key: fill(column, key, length.get(key)) for key, column in batch.items()}) for batch in batches
        ]

    def fill(column: Any, key: str, length: int | None) -> Any:
        if length is None:
            return column
        assert isinstance(column, Tensor)
        missing = length - column.shape[1]
        rest = [0, 0] * (column.dim() - 2)  # F.pad begins with the last dimension; sequences go along the second
        return F.pad(column, [*rest, *((missing, 0) if side == "left" else (0, missing))], value=values[key])

    return pad
