"""Pulls a loader's batches for frameworks that count the batches of an epoch beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selective_backprop.loader import SelectiveLoader
from selective_backprop.types import Batch


def pull(loader: SelectiveLoader) -> Batch | None:
    """Return the next training batch of the epoch, which begins if none is under way. None when it is over.

    Losses may come later: `loader.loss(outputs, targets, batch)`.
    """
    steps = loader.steps
    if steps.chain is None:
        loader.begin(ahead=True)
    batch = steps.next()
    steps.end_step()
    return batch


def pull_step(loader: SelectiveLoader, count: int) -> tuple[list[Batch | None], bool]:
    """Pull the batches over which gradients are accumulated for one optimizer step, and say whether the epoch is over.

    Its last step has the batches that are left. But a framework makes a step only after as many as it counts. So there
    are always `count` slots: a slot has a batch or None, and those without a batch come first.
    """
    step: list[Batch] = []
    while len(step) < count:
        if (batch := pull(loader)) is None:
            return [*[None] * (count - len(step)), *step], True
        step.append(batch)
    return [*step], False


class OptimizerSteps:
    """Gives out the batches of an epoch by optimizer steps. An epoch without a batch is joined with the next one.

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

    @property
    def run_over(self) -> bool:
        """Whether the loader has given out all its epochs."""
        return self.loader.epoch == self.loader.num_epochs

    def end_epoch(self, *, left: bool = False) -> None:
        """End the trainer's epoch. left: whether it was left early, so that its other candidates are dropped."""
        if left:
            self.loader.steps.end_epoch()
        self.epoch, self.taken, self._epoch_over = self.epoch + 1, 0, False

    def take(self, count: int) -> list[Batch | None]:
        """Return `count` slots for the next step; an empty list when the trainer's epoch is over."""
        # Trainers end the run when an epoch has no step.
        while not self._epoch_over and not (self.run_over and not self.loader.steps.in_epoch):
            if not self.loader.steps.in_epoch:
                self._begin_epoch(self.loader.epoch)
            step, is_over = pull_step(self.loader, count)
            has_batches = step[-1] is not None
            self._epoch_over = is_over and (has_batches or self.taken > 0)
            if has_batches:
                self.taken += count
                return step
        return []

    def state_dict(self) -> dict[str, Any]:
        """The state to save. Call it between steps."""
        state = {"epoch": self.epoch, "taken": self.taken, "epoch_over": self._epoch_over}
        return state | {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken, self._epoch_over = state["epoch"], state["taken"], state["epoch_over"]
        self.loader.load_state_dict(state["loader"])
