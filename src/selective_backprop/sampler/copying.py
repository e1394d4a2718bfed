"""Copies from the device to the CPU that training does not wait for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Copy = tuple[Tensor, Any]
"""A tensor on its way to the CPU, and the event of its arrival; None if it is there already."""
MAX_WAITING = 16
"""Training steps whose values may stay on a GPU before they are read."""


def begin_copy(values: Tensor) -> Copy:
    """Begin to copy values to the CPU.

    On a GPU the copy is queued behind the training step. The next scores are waited for anyway, and they come later, so
    reading these values then costs no wait of its own.
    """
    if not values.is_cuda:
        return values, None
    with torch.cuda.device(values.device):
        arriving = values.float().to("cpu", non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return arriving, arrived


def finish_copy(copy: Copy) -> Tensor:
    """Return values that `begin_copy` began to copy, as float32. Waits for them if needed."""
    values, arrived = copy
    if arrived is not None:
        arrived.synchronize()
    return values.to("cpu", torch.float32)
