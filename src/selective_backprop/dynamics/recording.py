"""Recording of training dynamics: what each training step says about its examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.copying import LEFT_WAITING, MAX_WAITING, Copy, begin_copy, finish_copy
from selective_backprop.dynamics.log import Dynamics, rows_from_bytes, rows_to_bytes
from selective_backprop.dynamics.values import class_values
from selective_backprop.ranks import Ranks
from selective_backprop.types import Batch


class Recorder:
    """Records the dynamics of training steps, without waiting for the GPU at every step.

    Args:
        num_examples: size of the data set.
    """

    def __init__(self, num_examples: int) -> None:
        self._dynamics = Dynamics(num_examples)
        # For each step: ids, losses and values on their way to the CPU, epoch.
        self._steps: list[tuple[Tensor, Copy, Copy | None, int]] = []

    @property
    def dynamics(self) -> Dynamics:
        """What this rank has recorded so far."""
        self._write()
        return self._dynamics

    def add(self, batch: Batch, outputs: Any, targets: Any, losses: Tensor, epoch: int) -> None:
        """Record a training step. losses: the loss of each example."""
        assert batch.ids is not None
        values = class_values(outputs, targets)
        if values is not None and len(values) != len(batch):
            values = None
        copies = begin_copy(losses.detach()), None if values is None else begin_copy(values)
        self._steps.append((batch.ids, *copies, epoch))
        if losses.device.type == "cpu":
            self._write()
        elif len(self._steps) >= MAX_WAITING:
            self._write(LEFT_WAITING)

    def _write(self, num_left: int = 0) -> None:
        count = len(self._steps) - num_left
        steps, self._steps = self._steps[:count], self._steps[count:]
        for ids, losses, values, epoch in steps:
            known = None if values is None else finish_copy(values)
            self._dynamics.record(ids, finish_copy(losses), epoch, known)

    def whole(self, ranks: Ranks) -> Dynamics:
        """Return the log of all ranks. All ranks must call this; each needs memory for all rows."""
        if ranks.size == 1:
            return self.dynamics
        own, result = self.dynamics, Dynamics(len(self._dynamics))
        last = int(max(epoch for (epoch,) in ranks.share([len(own.epochs)])))
        for labels in ranks.gather(torch.from_numpy(own.labels)):
            result.add_labels(labels.numpy())
        for epoch in range(last):
            for rows in ranks.gather(rows_to_bytes(own.rows(epoch))):
                result.add_rows(rows_from_bytes(rows), epoch)
        return result

    def state_dict(self) -> dict[str, Any]:
        return self.dynamics.state_dict()

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if a saved state does not fit."""
        self._dynamics.check_state_dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = []
        self._dynamics.load_state_dict(state)
