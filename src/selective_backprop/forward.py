"""How a batch goes through the model, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


def default_forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Outputs and targets of a pair (inputs, targets) or of a dict of the model's keyword arguments."""
    if isinstance(batch, Mapping):
        return model(**batch), batch.get("labels", batch)
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, targets = batch
        return model(inputs), targets
    raise TypeError(
        f"a batch of type {type(batch).__name__} is neither a pair (inputs, targets) nor a dict: pass "
        "forward=, a function from (model, batch) to (outputs, targets)"
    )
