"""Gives out a loader's batches by optimizer steps, for trainers that count the batches of an epoch beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from selective_backprop.batches.layout import Layout
from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.types import Batch


class OptimizerSteps:
    """Gives out all batches over which gradients are accumulated for one optimizer step, or none.

    The number of batches that an epoch selects is not known beforehand, and rarely a multiple of the accumulation
    steps. So the trainer's epoch ends with the step in which the loader's epoch ends, and the last batches of that step
    come from the next epoch. An epoch that selects less than one step is joined with the next one. The trainer's epochs
    may therefore begin a little late, but they never last longer than the trainer counted.

    Args:
        loader: the loader that selects.
        begin_epoch: called with the number of each epoch, before its candidates are drawn.
    """

    def __init__(self, loader: SelectiveLoader, begin_epoch: Callable[[int], None] = lambda epoch: None) -> None:
        self.loader = loader
        self.epoch = 0
        """Number of the trainer's epoch."""
        self.taken = 0
        """Number of batches given out in the trainer's epoch."""
        self.run_over = False
        self._begin_epoch = begin_epoch
        self._epoch_over = False
        self._batches: Iterator[Batch] = iter(())

    def end_epoch(self) -> None:
        """End the trainer's epoch."""
        self.epoch, self.taken, self._epoch_over = self.epoch + 1, 0, False

    def take(self, count: int, epoch_length: int) -> list[Batch]:
        """Return the batches of the next step; an empty list when the trainer's epoch is over.

        Args:
            count: number of batches that the trainer asks for.
            epoch_length: length of the trainer's epoch in batches. After the last one the trainer makes a step, even if
                it has fewer batches than usual.
        """
        step: list[Batch] = []
        while len(step) < count and not self.run_over and (step or not self._epoch_over):
            if (batch := next(self._batches, None)) is not None:
                step.append(batch)
                continue
            self._epoch_over = bool(step or self.taken)
            if step and self.taken + len(step) == epoch_length:
                break
            if self.loader.epoch == self.loader.num_epochs:
                self.run_over = True
            elif step or not self._epoch_over:
                self._begin_epoch(self.loader.epoch)
                self._batches = self.loader.batches()
        if step and self.run_over and self.taken + len(step) != epoch_length:
            step = split(step, count)
        self.taken += len(step)
        return step

    def state_dict(self) -> dict[str, Any]:
        """The state to save. Call it between steps."""
        state = {"epoch": self.epoch, "taken": self.taken, "epoch_over": self._epoch_over, "run_over": self.run_over}
        return state | {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._epoch_over, self.run_over = state["epoch_over"], state["run_over"]
        self.loader.load_state_dict(state["loader"])
        self._batches = self.loader.batches() if state["loader"]["in_epoch"] else iter(())


def split(batches: list[Batch], count: int) -> list[Batch]:
    """Split the examples into `count` batches; an empty list if there are too few examples."""
    if sum(map(len, batches)) < count:
        return []
    batches = list(batches)
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = (len(batches[largest]) + 1) // 2
        batches[largest : largest + 1] = [
            rows_of(batches[largest], slice(half)),
            rows_of(batches[largest], slice(half, None)),
        ]
    return batches


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Return a batch of these rows of a batch."""
    layout = Layout.of(batch.data, len(batch))
    data = layout.batch([column[rows] for column in layout.columns(batch.data, len(batch))])
    ids = None if batch.ids is None else batch.ids[rows]
    return Batch(data, ids, batch.weights[rows], batch.probabilities[rows])
