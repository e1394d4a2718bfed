"""Saves a training batch that was given out or formed, but not trained on yet, as plain data."""

from __future__ import annotations

from typing import Any

import torch

from selective_backprop.batches.layout import Layout, move
from selective_backprop.batches.plain import loaded_columns, saved_columns
from selective_backprop.types import Batch


def saved_batch(batch: Batch) -> dict[str, Any]:
    """Return plain data, so that a checkpoint needs no pickled classes."""
    layout = Layout.of(batch.data, len(batch))
    return {
        "layout": layout.state_dict(),
        "columns": saved_columns(layout, layout.columns(batch.data, len(batch))),
        "ids": batch.ids,
        "weights": batch.weights,
        "probabilities": batch.probabilities,
    }


def loaded_batch(state: dict[str, Any], device: torch.device) -> Batch:
    """Make the batch that was saved, on this device.

    >>> ones = torch.ones(2)
    >>> state = saved_batch(Batch({"x": torch.tensor([3, 4])}, None, ones, ones.double()))
    >>> loaded_batch(state, torch.device("cpu")).data
    {'x': tensor([3, 4])}
    """
    columns = [move(column, device) for column in loaded_columns(state["columns"])]
    data = Layout.from_state_dict(state["layout"]).batch(columns)
    return Batch(data, state["ids"], state["weights"], state["probabilities"])
