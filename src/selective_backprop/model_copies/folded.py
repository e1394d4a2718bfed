"""Scoring with a copy of the model whose BatchNorms are folded into other layers, and which may be compiled."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.model_copies.cheap_copy import CheapCopy, describe, losses_of
from selective_backprop.model_copies.folding import Folding, restore, snapshot
from selective_backprop.types import Candidates, Task

_logger = logging.getLogger(__name__)


class FoldedCopy(CheapCopy):
    """A copy of the model with its BatchNorms folded into the layers before them. Scores are the same up to rounding.

    A network that torch.fx cannot trace is copied without folding, and the log says so.

    Args:
        refresh_every: number of candidate batches between updates of the weights. Updates are cheap.
        channels_last: store the weights of convolutions in the channels-last layout, which is usually faster.
        compile: compile the copy with torch.compile. This takes long on the first batch; new weights need no new
            compilation. Batches of another size than the first go through the uncompiled copy, to avoid another one.
        measure: compare its speed with the model's on the first batch. If False, it is used whenever it can be made.

    >>> FoldedCopy(refresh_every=0)
    Traceback (most recent call last):
    ValueError: refresh_every must be at least 1 candidate batch, got 0
    """

    def __init__(
        self, *, refresh_every: int = 1, channels_last: bool = True, compile: bool = False, measure: bool = True
    ) -> None:
        super().__init__(refresh_every=refresh_every, measure=measure)
        self.channels_last = channels_last
        self.compile = compile
        self.name = "compiled" if compile else "folded"
        self._folding: Folding | None = None
        self._compiled_size = 0

    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        self._folding = self._fold(candidates, task, exact)
        if not self.compile:
            return self._folding.module
        self._compiled_size = candidates.size
        compiled: nn.Module = torch.compile(self._folding.module, dynamic=False)  # type: ignore[assignment]
        losses_of(compiled, candidates, task)
        return compiled

    def _fold(self, candidates: Candidates, task: Task, exact: Tensor) -> Folding:
        if self._saved is not None:
            return Folding(task.model, trace=self._saved["traced"], channels_last=self.channels_last)
        try:
            return checked_folding(candidates, task, exact, channels_last=self.channels_last)
        except Exception as error:  # whatever a forward raises that is called with torch.fx's stand-ins for tensors
            _logger.warning("copying the model without folding its BatchNorms: %s", describe(error))
            return Folding(task.model, trace=False, channels_last=self.channels_last)

    def _follow(self, model: nn.Module) -> None:
        assert self._folding is not None
        self._folding.follow(model)

    def _chosen(self, candidates: Candidates, task: Task) -> nn.Module:
        if self._module is not None and self.compile and candidates.size != self._compiled_size:
            assert self._folding is not None
            return self._folding.module
        return super()._chosen(candidates, task)

    def _contents(self) -> dict[str, Any]:
        assert self._folding is not None
        return {"traced": self._folding.traced, "weights": snapshot(self._folding.module)}

    def _restore(self, contents: dict[str, Any]) -> None:
        assert self._folding is not None
        restore(self._folding.module, contents["weights"])


def checked_folding(candidates: Candidates, task: Task, exact: Tensor, *, channels_last: bool) -> Folding:
    """Fold the model, and check that it still computes the same: tracing sees only one path through the code."""
    folding = Folding(task.model, channels_last=channels_last)
    found = losses_of(folding.module, candidates, task)
    if not torch.allclose(found, exact, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ValueError(f"as torch.fx traces it, its losses are off by {float((found - exact).abs().max()):.2g}")
    return folding
