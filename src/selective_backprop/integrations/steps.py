"""Gives out a loader's batches by optimizer steps, for trainers that count the batches of an epoch beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.types import Batch


class OptimizerSteps:
    """Gives out the batches over which gradients are accumulated for one optimizer step.

    The number of batches that an epoch selects is not known beforehand, and rarely a multiple of the accumulation
    steps. The last step of an epoch has the batches that are left, as in plain training. But a trainer that counts
    batches makes a step only after as many as it asked for. So each step is a list of that many slots: a slot has a
    batch or None, and those without a batch come first.

    Args:
        loader: the loader that selects.
        begin_epoch: called with the number of each epoch, before its candidates are drawn.
    """

    def __init__(self, loader: SelectiveLoader, begin_epoch: Callable[[int], None] = lambda epoch: None) -> None:
        self.loader = loader
        self.epoch = 0
        """Number of the trainer's epoch."""
        self.taken = 0
        """Number of slots given out in the trainer's epoch."""
        self._begin_epoch = begin_epoch
        self._epoch_over = False
        self._batches: Iterator[Batch] = iter(())

    @property
    def run_over(self) -> bool:
        """Whether the loader has given out all its epochs."""
        return self.loader.epoch == self.loader.num_epochs

    def end_epoch(self, *, left: bool = False) -> None:
        """End the trainer's epoch. left: whether it was left early, so that its other candidates are dropped."""
        if left:
            self.loader.stepper.end_step()
            self.loader.stepper.end_epoch()
            self._batches = iter(())
        self.epoch, self.taken, self._epoch_over = self.epoch + 1, 0, False

    def take(self, count: int) -> list[Batch | None]:
        """Return `count` slots for the next step; an empty list when the trainer's epoch is over."""
        step: list[Batch] = []
        while len(step) < count and not self._epoch_over:
            if (batch := next(self._batches, None)) is not None:
                step.append(batch)
            elif step or self.taken or self.run_over:
                self._epoch_over = True
            else:
                # Also after an epoch without a batch, because trainers end the run when an epoch has no step.
                self._begin_epoch(self.loader.epoch)
                self._batches = self.loader.batches()
        if not step:
            return []
        self.taken += count
        return [*[None] * (count - len(step)), *step]

    def state_dict(self) -> dict[str, Any]:
        """The state to save. Call it between steps."""
        state = {"epoch": self.epoch, "taken": self.taken, "epoch_over": self._epoch_over}
        return state | {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken, self._epoch_over = state["epoch"], state["taken"], state["epoch_over"]
        self.loader.load_state_dict(state["loader"])
        self._batches = self.loader.batches() if self.loader.stepper.in_epoch else iter(())
