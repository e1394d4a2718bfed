"""Examples that were not trained on yet, as plain data for a state that torch.load(weights_only=True) reads."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from selective_backprop.rows import Column, Layout, move
from selective_backprop.types import Batch

_ARRAY = "numpy array"


def saved(columns: list[Column], names: list[str]) -> list[Any]:
    """Return columns as plain data for a state, in memory of their own.

    >>> column = [numpy.ones(2), numpy.zeros(1)]
    >>> [entry.tolist() for entry in loaded(saved([column], ["batch"]), torch.device("cpu"))[0]]
    [[1.0, 1.0], [0.0]]
    """
    found = []
    for column, name in zip(columns, names, strict=True):
        try:
            found.append(pytree.tree_map(_saved, column))
        except TypeError as error:
            raise TypeError(
                f"cannot save {name} ({error}): examples that wait for their batch are saved as plain data. Let the "
                "collate function make it a tensor, a number or a string, or save between epochs"
            ) from None
    return found


def loaded(columns: list[Any], device: torch.device) -> list[Column]:
    """Make the columns that were saved, on the device."""
    arrays = pytree.tree_map(_loaded, columns, is_leaf=_is_array)
    return move(arrays, device)  # type: ignore[no-any-return]


def _saved(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone()  # a slice would be saved with the whole tensor that it belongs to
    if isinstance(leaf, numpy.ndarray):
        return {_ARRAY: torch.from_numpy(leaf.copy())}
    if isinstance(leaf, int | float | str | bytes | None):
        return leaf
    raise TypeError(f"it has a {type(leaf).__name__}")


def _is_array(value: Any) -> bool:
    return isinstance(value, dict) and _ARRAY in value


def _loaded(leaf: Any) -> Any:
    return leaf[_ARRAY].numpy().copy() if _is_array(leaf) else leaf


def no_plain_batch(layout: Layout) -> TypeError:
    """Make the error for batches that a state cannot hold."""
    return TypeError(
        f"cannot save batches like {layout.names()} in the middle of an epoch, because they are of a class of their "
        "own, and a state is plain data: let the collate function return a dict or a tuple, or save between epochs"
    )


def saved_batch(batch: Batch) -> dict[str, Any]:
    """Return a batch that was not trained on yet as plain data."""
    size = batch.weights.numel()
    layout = Layout(batch.data, size)
    columns = saved(layout.columns(batch.data, size), layout.names())
    notes = [batch.ids, batch.weights, batch.probabilities]
    if layout.state_dict() is None:
        raise no_plain_batch(layout)
    return {"layout": layout.state_dict(), "columns": columns, "notes": notes}


def loaded_batch(state: dict[str, Any], device: torch.device) -> Batch:
    """Make the batch that was saved, on this device.

    >>> ones = torch.ones(2)
    >>> state = saved_batch(Batch({"x": torch.tensor([3, 4])}, None, ones, ones.double()))
    >>> loaded_batch(state, torch.device("cpu")).data
    {'x': tensor([3, 4])}
    """
    return Batch(Layout.from_state_dict(state["layout"]).batch(loaded(state["columns"], device)), *state["notes"])
