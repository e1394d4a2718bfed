"""Padding: puts sequences of different lengths into one training batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from selective_backprop.batches.layout import Column, entries, with_values

Pad = Callable[[list[Any]], list[Any]]
"""A function that gives batches the same shape, except for their number of rows."""


def pad_to_longest(values: Mapping[Any, float], *, side: Literal["right", "left"] = "right") -> Pad:
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
    if side not in ("right", "left"):
        raise ValueError(f"side must be 'right' or 'left', got {side!r}")

    def pad(batches: list[Any]) -> list[Any]:
        columns = [entries(batch) for batch in batches]
        keys = [key for key in columns[0] if key in values]
        if not keys:
            raise ValueError(
                f"pad_to_longest was told how to fill {list(values)}, but the batches, of type "
                f"{type(batches[0]).__name__}, have the entries {list(columns[0])}: name those to pad"
            )
        for key in keys:
            if not isinstance(columns[0][key], Tensor):
                kind = type(columns[0][key]).__name__
                raise TypeError(f"pad_to_longest pads tensors, but the entry {key!r} of the batches is a {kind}")
        length = {key: max(c[key].shape[1] for c in columns) for key in keys if columns[0][key].dim() > 1}
        padded = [[fill(column, key, length.get(key)) for key, column in c.items()] for c in columns]
        return [with_values(batch, parts) for batch, parts in zip(batches, padded, strict=True)]

    def fill(column: Any, key: Any, length: int | None) -> Any:
        if length is None:
            return column
        missing = length - column.shape[1]
        rest = [0, 0] * (column.dim() - 2)  # F.pad begins with the last dimension; sequences go along the second
        return F.pad(column, [*rest, *((missing, 0) if side == "left" else (0, missing))], value=values[key])

    return pad


def different_shapes(first: tuple[Any, Any], second: tuple[Any, Any]) -> ValueError:
    """Make the error for examples with different shapes or types. Each argument: shape and dtype of one example."""
    return ValueError(
        f"examples of shape {tuple(first[0])} ({first[1]}) and {tuple(second[0])} ({second[1]}) cannot share a "
        "training batch: pad to one size in the collate function, or pass pad= to SelectiveLoader, such as "
        "pad_to_longest"
    )


class ShapeCheck:
    """Finds out from the first candidate batches whether examples differ in shape, so that the error comes early."""

    def __init__(self) -> None:
        self._shapes: list[tuple[Any, Any]] | None = None
        self._is_over = False

    def stop(self) -> None:
        """Stop checking: from now on examples may differ in shape."""
        self._is_over = True

    def __call__(self, columns: list[Column]) -> ValueError | None:
        """Return the error if these columns could not be joined with those of the first batch; else None."""
        if self._is_over:
            return None
        shapes = []
        for column in columns:
            if isinstance(column, Tensor):
                shapes.append((column.shape[1:], column.dtype))
        if self._shapes is None:
            self._shapes = shapes
        if shapes == self._shapes:
            return None
        return next(different_shapes(*pair) for pair in zip(self._shapes, shapes, strict=True) if pair[0] != pair[1])
