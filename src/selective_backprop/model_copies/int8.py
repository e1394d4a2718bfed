"""Scoring with a copy of the model in 8-bit integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from selective_backprop.inference import device_of, preserved_rng
from selective_backprop.model_copies.cheap_copy import CheapCopy, losses_of
from selective_backprop.model_copies.folded import checked_folding
from selective_backprop.model_copies.folding import Folding, restore, same_tensors, snapshot
from selective_backprop.model_copies.quantising import Quantised, forget_ranges, observing, quantising
from selective_backprop.types import Candidates, Task


class Int8Copy(CheapCopy):
    """A copy of the model with BatchNorms folded, and with weights and activations in 8 bits, except the last layer.

    Weights that have changed are quantised anew, which takes milliseconds. This must happen often: at high learning
    rates, weights that are three steps old harm the ranking more than 8 bits do. The ranges of activations change
    slowly; observing them takes a forward pass.

    Args:
        refresh_every: number of candidate batches between updates of the weights.
        calibration_batches: number of batches to observe at the beginning.
        calibrate_every: number of candidate batches between later observations, of one batch each.
        measure: compare its speed with the model's on the first batch. If False, it is used whenever it can be made.

    >>> Int8Copy(calibration_batches=0)
    Traceback (most recent call last):
    ValueError: calibration_batches must be at least 1, got 0
    """

    name = "int8"

    def __init__(
        self,
        *,
        refresh_every: int = 1,
        calibration_batches: int = 4,
        calibrate_every: int = 100,
        measure: bool = True,
    ) -> None:
        if calibration_batches < 1:
            raise ValueError(f"calibration_batches must be at least 1, got {calibration_batches}")
        if calibrate_every < 1:
            raise ValueError(f"calibrate_every must be at least 1 candidate batch, got {calibrate_every}")
        super().__init__(refresh_every=refresh_every, measure=measure)
        self.calibrate_every = calibrate_every
        self.calibration_batches = calibration_batches
        self._folding: Folding | None = None
        self._observed: fx.GraphModule | None = None
        self._followed: dict[str, Tensor] | None = None  # the weights of the model that are in use

    def _due(self, batch: int) -> bool:
        return super()._due(batch) or self._observes(batch)

    def _observes(self, batch: int) -> bool:
        return batch < self.calibration_batches or batch % self.calibrate_every == 0

    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        self._folding = checked_folding(candidates, task, exact, channels_last=False)
        self._observed = self._with_observers(candidates, task)
        module = Quantised(self._observed)
        with quantising():  # its first call warns too
            losses_of(module, candidates, task)
        return module

    def _with_observers(self, candidates: Candidates, task: Task) -> fx.GraphModule:
        """Make the observed network and run it on these candidates."""
        from selective_backprop.model_copies.fusing import SumsSeen, may_overwrite, relus_as_modules  # needs torch.ao

        assert self._folding is not None and isinstance(self._folding.module, fx.GraphModule)
        relus_as_modules(self._folding.module)
        self._observed, sums = observing(self._folding.module), SumsSeen()
        with sums.watching(self._observed):
            self._observe(candidates, task)
        if not (sums.fit and may_overwrite(self._observed)):
            self._observed = observing(self._folding.module, fuse_sums=False)
            self._observe(candidates, task)
        return self._observed

    def _observe(self, candidates: Candidates, task: Task) -> None:
        assert self._observed is not None
        with torch.no_grad(), preserved_rng(device_of(task.model)):  # not NoTrace, which would undo what is observed
            task.forward(self._observed, candidates.data)

    def _follow(self, model: nn.Module) -> None:
        assert self._folding is not None and self._observed is not None and isinstance(self._module, Quantised)
        if self._followed is None or not same_tensors(model, self._followed):  # between most batches is no step
            self._folding.follow(model)  # its layers are those of the observed network
            self._module.follow(self._observed)
            self._followed = snapshot(model)

    def _refresh(self, candidates: Candidates, task: Task, batch: int) -> None:
        if not self._observes(batch):
            self._follow(task.model)
            return
        assert self._folding is not None and self._observed is not None
        self._folding.follow(task.model)
        if batch >= self.calibration_batches:
            forget_ranges(self._observed)  # they moved with the weights
        self._observe(candidates, task)
        self._module, self._followed = Quantised(self._observed), snapshot(task.model)

    def _contents(self) -> dict[str, Any]:
        assert self._observed is not None
        return {"observed": snapshot(self._observed)}

    def _restore(self, contents: dict[str, Any]) -> None:
        assert self._observed is not None
        restore(self._observed, contents["observed"])
        self._module, self._followed = Quantised(self._observed), None
