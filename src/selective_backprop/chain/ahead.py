"""Ahead: lets the next candidates be scored in the background while the current ones are trained on."""

from __future__ import annotations

from typing import Any

from selective_backprop.chain.id_batches import IdBatch
from selective_backprop.chain.saved_batches import loaded_batch, saved_batch
from selective_backprop.chain.select import Select
from selective_backprop.run import Run
from selective_backprop.scorers import PipelinedScorer
from selective_backprop.types import Batch, Candidates, Task


class Ahead:
    """Gives out candidates, and holds the next ones while the current ones are trained on.

    Args:
        source: gives out candidates.
        run: knows whether selection is on.
        scorer: scores in the background.
        task: the model, the forward pass and the loss.
        state: of an epoch that was under way; None begins one.
    """

    def __init__(
        self, source: Any, run: Run, scorer: PipelinedScorer, task: Task, state: dict[str, Any] | None = None
    ) -> None:
        self.source, self._run, self._scorer, self._task = source, run, scorer, task.for_scores()
        self._held: Batch | None = None
        own = None if state is None else state["own"]
        if own is not None:
            source.step = None if own["step"] is None else tuple(ids and IdBatch(*ids) for ids in own["step"])
            self._hold(loaded_batch(own["batch"], source.options.device))

    def __getattr__(self, name: str) -> Any:
        """Look up what else is known about the epoch, such as its fraction. That of held candidates does not count."""
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def next(self) -> Batch | None:
        """Return the next candidates; None at the end."""
        batch, self._held = self._held, None
        return self.source.next() if batch is None else batch

    def work(self, select: Select) -> None:
        """Load the next candidates and begin to score them, while the caller trains on a batch.

        Plain training loads a batch after the training step before it, and augmentation may draw from the same random
        state as dropout. To equal plain training bit for bit, nothing is loaded ahead while everything is kept.
        """
        place = self._run.epoch + select.fraction, select.round, self._run.num_epochs
        if self._held is None and not select.keeps_all and self._run.schedule.is_on(*place):
            batch = self.source.next()
            if batch is not None:
                self._hold(batch)

    def _hold(self, batch: Batch) -> None:
        self._held = batch
        if size := batch.weights.numel():
            self._scorer.submit(Candidates(batch.data, batch.ids, size), self._task)

    def close(self) -> None:
        """Drop what was begun: no thread may be at work when a DataLoader forks its workers."""
        self._held = None
        self._scorer.submit(None, self._task)

    def state_dict(self) -> dict[str, Any]:
        batch, own, step = self._held, None, self.source.step
        if batch is not None:
            steps = None if step is None else [None if one is None else list(one) for one in step]
            own = {"batch": saved_batch(batch), "step": steps}
        return {"own": own, "source": self.source.state_dict()}
