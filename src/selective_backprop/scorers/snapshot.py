"""A copy of the model that does not change while the model is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.inference import to_eval
from selective_backprop.types import Task


class Snapshot:
    """A copy of the model in eval mode, whose weights and buffers are updated at every n-th candidate batch.

    Args:
        sync_every: n.
        device: device of the copy; by default that of the model.
    """

    def __init__(self, *, sync_every: int, device: torch.device | None) -> None:
        self.sync_every = sync_every
        self.device = device
        self._candidate_batches = 0
        self._model: nn.Module | None = None
        self._copy: nn.Module | None = None
        self._saved: list[Tensor] | None = None

    def next(self, task: Task) -> nn.Module:
        """Return the copy to score the next candidate batch with, updated if that is due."""
        new = self._copy is None or self._model is not task.model
        if self._copy is None or new:
            self._model, self._copy = task.model, _private_copy(task.model, self.device)
        if self._saved is not None:
            _write(self._copy, self._saved)
            self._saved, new = None, False
        if new or self._candidate_batches % self.sync_every == 0:
            _write(self._copy, _tensors(task.model))
        self._candidate_batches += 1
        return self._copy

    def state_dict(self) -> dict[str, Any]:
        weights = self._saved
        # Taken anew for every candidate batch, they are never needed again.
        if self.sync_every > 1 and weights is None and self._copy is not None:
            weights = [tensor.detach().to("cpu", copy=True) for tensor in _tensors(self._copy)]
        return {"candidate_batches": self._candidate_batches, "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._candidate_batches, self._saved = state["candidate_batches"], state["weights"]


def _private_copy(model: nn.Module, device: torch.device | None) -> nn.Module:
    try:
        private = to_eval(copy.deepcopy(model).requires_grad_(False))
    except Exception as error:  # whatever a module raises that cannot be copied
        raise ValueError(
            "pipelined scoring works by a copy of the model, and copy.deepcopy(model) failed: "
            f"{str(error).strip().partition(chr(10))[0]}. If the model has torch.nn.utils.weight_norm, "
            "torch.nn.utils.parametrizations.weight_norm can be copied; otherwise score without pipelining"
        ) from error
    return private if device is None else private.to(device)


def _tensors(model: nn.Module) -> list[Tensor]:
    """Weights and buffers, those too that a state_dict leaves out."""
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def _write(model: nn.Module, values: list[Tensor]) -> None:
    for tensor, value in zip(_tensors(model), values, strict=True):
        tensor.copy_(value, non_blocking=True)
