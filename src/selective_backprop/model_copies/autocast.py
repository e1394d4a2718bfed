"""Scoring in lower precision, on hardware that supports it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from selective_backprop.inference import device_of
from selective_backprop.model_copies.cheap_copy import CheapCopy, losses_of
from selective_backprop.types import Candidates, Task

_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class AutocastCopy(CheapCopy):
    """Scores with the model itself under torch.autocast. Losses are computed in float32.

    Args:
        precision: "bf16" or "fp16".
        measure: compare its speed with the model's on the first batch, because a CPU without these types emulates them
            at a thirtieth of the speed. If False, it is used whenever it works.

    >>> AutocastCopy("fp8")
    Traceback (most recent call last):
    ValueError: precision must be one of bf16, fp16, got 'fp8'
    """

    def __init__(self, precision: str = "bf16", *, measure: bool = True) -> None:
        if precision not in _PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}")
        super().__init__(refresh_every=1, measure=measure)
        self.precision = precision
        self.name = precision

    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        module = _Autocast(task.model, _PRECISIONS[self.precision])
        found = losses_of(module, candidates, task)
        if bool((torch.isfinite(exact) & ~torch.isfinite(found)).any()):
            raise ValueError(f"losses overflow in {self.precision}")
        return module

    def _follow(self, model: nn.Module) -> None:
        return None  # it is the model


class _Autocast(nn.Module):
    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.training = model.training  # the flag of this wrapper alone; those inside belong to the model
        self.model = model
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_of(self.model).type, dtype=self.dtype):
            outputs = self.model(*args, **kwargs)
        return _pytree.tree_map_only(Tensor, lambda x: x.float() if x.dtype == self.dtype else x, outputs)
