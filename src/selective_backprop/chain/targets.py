"""Checks that a loss is computed against the targets of the batch that was given out, where that is cheap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from selective_backprop.copying import LaterErrors


class TargetCheck:
    """Raises if class labels are not those of the batch that was given out, in its order. A GPU is not waited for.

    Only one label per example is compared. Targets of another shape or type, such as soft ones, pass.
    """

    def __init__(self) -> None:
        self._errors = LaterErrors()

    def __call__(self, data: Any, targets: Any) -> None:
        """Check the targets of a training loss. data: the batch that was given out."""
        given = data.get("labels") if isinstance(data, Mapping) else None
        if isinstance(data, list | tuple) and len(data) == 2:
            given = data[1]
        if targets is given or not isinstance(targets, Tensor) or not isinstance(given, Tensor):
            return
        alike = (targets.shape, targets.dtype, targets.device) == (given.shape, given.dtype, given.device)
        if alike and given.dim() == 1 and not given.is_floating_point():
            self._errors.add((targets != given).any(), _error)


def _error(differ: Tensor) -> ValueError | None:
    if not differ:
        return None
    return ValueError(
        "these targets are not those of the batch that the loader gave out, so each loss would count for the wrong "
        "example. Leave the batch in its order, and call your loss function itself for other batches, such as "
        "validation. If your loop makes its own targets, let transform= make them. With mixup or CutMix, train on your "
        "own loss of the mixture, and report by loader.loss(outputs.detach(), targets), with the targets given out"
    )
