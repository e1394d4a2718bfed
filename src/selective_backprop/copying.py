"""Copies from the device to the CPU that training does not wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Copy = tuple[Tensor, Any]
"""A tensor on its way to the CPU, and the event of its arrival; None if it is there already."""
MAX_WAITING = 16
"""Training steps whose values may stay on a GPU before they are read."""
LEFT_WAITING = 8
"""The newest of these steps, which are left unread then: the GPU works on them while the CPU waits for older ones."""


def begin_copy(values: Tensor) -> Copy:
    """Begin to copy values to the CPU.

    On a GPU the copy is queued behind the training step. The next scores are waited for anyway, and they come later, so
    reading these values then costs no wait of its own.
    """
    if values.device.type in ("cpu", "mps"):  # the memory of MPS is the CPU's, so values are copied when they are read
        return values, None
    module = torch.get_device_module(values.device)
    with module.device(values.device):
        arriving = values.float().to("cpu", non_blocking=True)
        arrived = module.Event()
        arrived.record()
    return arriving, arrived


def finish_copy(copy: Copy) -> Tensor:
    """Return values that `begin_copy` began to copy, as float32. Waits for them if needed."""
    values, arrived = copy
    if arrived is not None:
        arrived.synchronize()
    return values.to("cpu", torch.float32)


class LaterErrors:
    """Raises errors by values that are computed on the device, without waiting for it at every step.

    On the CPU they are raised at once. On a GPU they are raised when the values have arrived, some steps later.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Copy, Callable[[Tensor], Exception | None]]] = deque()

    def add(self, values: Tensor, error: Callable[[Tensor], Exception | None]) -> None:
        """Raise what `error` makes of these values, unless it is None. Errors that were added before come first."""
        self._waiting.append((begin_copy(values.detach()), error))
        while self._waiting:
            (_, arrived), _ = self._waiting[0]
            if arrived is not None and not arrived.query() and len(self._waiting) <= MAX_WAITING:
                return
            copied, error = self._waiting.popleft()
            if (found := error(finish_copy(copied))) is not None:
                raise found
