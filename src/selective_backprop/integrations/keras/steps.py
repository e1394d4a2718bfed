"""Selected batches for the steps of Keras' epochs. Each is selected when the step before it is over."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from selective_backprop.loader.saved_batch import loaded_batch, saved_batch
from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.types import Batch


class SelectedSteps:
    """Knows which step of which epoch Keras is at, from what it asks for, and selects for it.

    An epoch of Keras ends with the candidates' epoch. It cannot be without a step: if nothing is selected in an epoch,
    the next epoch of candidates follows in it.

    Args:
        loader: the loader that selects.
        may_be_empty: whether an epoch may have no step left after a resume.
    """

    def __init__(self, loader: SelectiveLoader, *, may_be_empty: bool) -> None:
        self.loader = loader
        self.may_be_empty = may_be_empty
        self.ahead = 0
        """Number of batches that Keras takes before their step."""
        self._queue: deque[tuple[Batch, float]] = deque()  # not trained on yet, each with the progress before it
        self._taken = 0  # how many of these Keras has
        self._step = -1  # the step of the first of them
        self._step_is_over = False
        self._epoch_is_over = False
        self._end = loader.num_epochs  # the number of epochs after which this call of fit ends

    def begins(self, step: int) -> bool:
        """Whether Keras asks about this step for the first time, so that the step before it is over."""
        return step != self._step or self._step_is_over

    def has_batch_for(self, step: int) -> bool:
        """Whether this step of the epoch has a batch. Unless done before, it is selected now, with current weights."""
        if self.begins(step):
            self._drop_trained()
            self._step, self._step_is_over = step, False
            self._epoch_is_over &= step > 0
        while not self._queue and not self._epoch_is_over and not self._select():
            self._end_epoch()
        while 0 < len(self._queue) <= self.ahead and self._select():
            pass
        return bool(self._queue)

    def _select(self) -> bool:
        """Select the next batch of the epoch. False if it has no more."""
        stepper = self.loader.stepper
        stepper.end_step()
        if stepper.epoch is None:
            stepper.begin()
        progress = self.loader.progress
        if (batch := stepper.next()) is None:
            return False
        stepper.expect_later()  # its losses come when it has been trained on, perhaps after the next one was taken
        self._queue.append((batch, progress))
        return True

    def _end_epoch(self) -> None:
        stepper = self.loader.stepper
        assert stepper.epoch is not None
        had_steps = self._step > 0 or (self.may_be_empty and stepper.epoch.num_given > 0)
        stepper.end_epoch()
        stepper.report_stats()
        self._epoch_is_over = had_steps or self.run_is_over
        if self.run_is_over and not self.loader.stats.batches:
            raise ValueError("nothing was selected in the whole run: there is too little data, or selectivity")
        if self.run_is_over and not had_steps and not self.may_be_empty:
            raise RuntimeError(
                "the run was over when this state was saved: the model is trained, there is no step left"
            )

    def take(self) -> Batch | None:
        """Take the batch of the next step, or of a later one if Keras loads ahead; None if there is none yet."""
        if self._taken < len(self._queue):
            self._taken += 1
            return self._queue[self._taken - 1][0]
        # Loaded ahead beyond the end of the epoch: has to look like a batch, and is never trained on.
        return self._queue[-1][0] if 0 < len(self._queue) <= self.ahead else None

    def end_step(self) -> None:
        """End the current step."""
        self._step_is_over = True

    def restart(self) -> None:
        """Start anew with a run or an epoch. Keras has dropped the batches that it took without training on them."""
        if self._step > 0 or self._step_is_over:
            self._drop_trained()
        self._taken = 0  # the first batch of all, too, which Keras takes to look at before the first step
        self._step, self._step_is_over = -1, False

    def _drop_trained(self) -> None:
        if self._taken:
            self._queue.popleft()
            self._taken -= 1

    def end_after(self, num_epochs: int, *, resumed: bool) -> None:
        """End this call of fit after so many epochs of candidates; if it resumes a run, at the end of the run."""
        end, run = self.loader.epoch + num_epochs, self.loader.num_epochs
        self._end = min(end, run) if resumed and run is not None else end

    @property
    def run_is_over(self) -> bool:
        """Whether all epochs of this call of fit are over."""
        return self._end is not None and self.loader.epoch >= self._end

    @property
    def batch(self) -> Batch:
        """The batch of the current step."""
        if not self._queue:
            raise RuntimeError("no step is under way")
        return self._queue[0][0]

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered before the current step."""
        return self._queue[0][1] if self._queue else self.loader.progress

    def state_dict(self) -> dict[str, Any]:
        """The state to save. Call it between steps, when Keras has finished its last batch."""
        waiting = list(self._queue)[1 if self._taken else 0 :]
        return {
            "loader": self.loader.state_dict(),
            "waiting": [{"batch": saved_batch(batch), "progress": progress} for batch, progress in waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        cpu = torch.device("cpu")
        self._queue = deque((loaded_batch(one["batch"], cpu), one["progress"]) for one in state["waiting"])
        self._taken, self._step, self._step_is_over, self._epoch_is_over = 0, -1, False, False
