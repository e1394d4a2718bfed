"""Selected batches, step by step of Keras' epochs, each selected when the step before it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from selective_backprop.loader.selective_loader import SelectiveLoader
from selective_backprop.types import Batch


class SelectedSteps:
    """Knows which step of which epoch Keras is at, from what it asks for, and selects for it.

    An epoch of Keras ends with the candidates' epoch. It cannot be without a step: where no batch fills up, the next
    epoch of candidates follows in it.

    Args:
        loader: the loader that selects.
        may_be_empty: whether an epoch may have no step left after a resume.
    """

    def __init__(self, loader: SelectiveLoader, *, may_be_empty: bool) -> None:
        self.loader = loader
        self.may_be_empty = may_be_empty
        self.ahead = 0
        """Number of batches that Keras takes before their step."""
        self._batches: Iterator[Batch] | None = None
        self._queue: deque[tuple[Batch, float]] = (
            deque()
        )  # not known to be trained on, each with the progress before it
        self._taken = 0  # how many of these Keras has
        self._step = -1  # the step of the first of them
        self._step_over = False
        self._epoch_over = False  # all its candidates have been offered
        self.resumed = False
        """Whether the next step continues an epoch that was under way when the state was saved."""

    def begins(self, step: int) -> bool:
        """Whether Keras asks about this step for the first time, so that the step before it is over."""
        return step != self._step or self._step_over

    def has_batch_for(self, step: int) -> bool:
        """Whether this step of the epoch has a batch. Unless done before, it is selected now, with current weights."""
        if self.begins(step):
            self._drop_trained()
            self._step, self._step_over = step, False
            if step == 0 and not self._queue:  # a state that was loaded may have the last batch of an epoch in it
                self._epoch_over = False
        while len(self._queue) <= self.ahead and not self._epoch_over:
            self._select()
        if self.resumed and self.run_over and not self._queue and not self.may_be_empty:
            raise RuntimeError(
                "the run was over when this state was saved: the model is trained, there is no step left"
            )
        self.resumed &= step == 0 and bool(self._queue)
        if not self._queue and not self.loader.stats.batches:
            raise ValueError("nothing was selected in the whole run: there is too little data, or selectivity")
        return bool(self._queue)

    def _select(self) -> None:
        if self._batches is None:
            self._batches = self.loader.batches()
        progress = self.loader.progress
        if (batch := next(self._batches, None)) is not None:
            self._queue.append((batch, progress))
            return
        self._batches = None
        had_steps = self._step > 0 or bool(self._queue) or (self.resumed and self.may_be_empty)
        self._epoch_over = self.run_over or had_steps

    def take(self) -> Batch | None:
        """Take the batch of the next step, or of a later one if Keras loads ahead; None if there is none yet."""
        if self._taken == len(self._queue):
            # Loaded ahead beyond the end of the epoch: has to look like a batch, and is never trained on.
            return self._queue[-1][0] if self.ahead and self._queue and self._epoch_over else None
        self._taken += 1
        return self._queue[self._taken - 1][0]

    def end_step(self) -> None:
        """End the current step."""
        self._step_over = True

    def restart(self) -> None:
        """Start anew with a run or an epoch. Keras has dropped the batches that it took without training on them."""
        if self._step > 0 or self._step_over:
            self._drop_trained()
        self._taken = 0  # the first batch of all, too, which Keras takes to look at before the first step
        self._step, self._step_over = -1, False

    def _drop_trained(self) -> None:
        if self._taken:
            self._queue.popleft()
            self._taken -= 1

    @property
    def _under_way(self) -> bool:
        """Whether Keras' epoch seems to be under way."""
        return self.resumed or self._taken > 0 or bool(self._queue)

    @property
    def epoch(self) -> int:
        """Number of Keras' epoch, from 0; between epochs, that of the next one."""
        # The last batch of an epoch is given out when all its candidates have been counted.
        ends = self._under_way and not self.loader.in_epoch and (self.may_be_empty or bool(self._queue))
        return self.loader.epoch - ends

    @property
    def run_over(self) -> bool:
        """Whether all candidates of the run have been offered."""
        return self.loader.num_epochs is not None and self.loader.epoch >= self.loader.num_epochs

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
        layout = self.loader.layout
        waiting = []
        for batch, progress in list(self._queue)[1 if self._taken else 0 :]:
            assert layout is not None  # since something was selected
            columns = layout.columns(batch.data, len(batch))
            waiting.append([columns, batch.ids, batch.weights, batch.probabilities, progress])
        return {
            "loader": self.loader.state_dict(),
            "waiting": waiting,
            "epoch_over": self._epoch_over,
            "under_way": self._under_way,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches = None  # what was under way ends here, before its statistics are replaced
        self.loader.load_state_dict(state["loader"])
        layout = self.loader.layout
        self._queue.clear()
        for columns, ids, weights, probabilities, progress in state["waiting"]:
            assert layout is not None
            self._queue.append((Batch(layout.batch(columns), ids, weights, probabilities), progress))
        self._taken, self._step, self._step_over = 0, -1, False
        self._epoch_over, self.resumed = state["epoch_over"], state["under_way"]
        if self.resumed and not state["loader"]["in_epoch"]:
            self._batches = iter(())  # all that is left of this epoch is to find that it is over
