"""The stepper: gives out training batches one by one, for frameworks that count them and for the loader itself."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch

from selective_backprop.loader.epoch import AnyEpoch, Run, begin_epoch, resume_epoch
from selective_backprop.loader.reporting import Reporting
from selective_backprop.scorers.audited import AuditedLossScorer
from selective_backprop.types import Batch

_logger = logging.getLogger(__name__)


_MOST_AHEAD = 1000  # batches that a loop may take before it reports the loss of any of them


@dataclass
class Step:
    """A training step under way."""

    batch: Batch
    epoch: int
    """Number of the batch's epoch."""
    is_ahead: bool = False
    """Whether the loop may report losses after this step, because it takes batches ahead."""


class Stepper:
    """Steps through epochs: `begin`, then `offer` and `take` with a training step each, then `end_epoch`.

    Frameworks that count batches call these one by one. `loader.stepper` is the loader's own.

    Args:
        run: the parts that epochs are run with.
        reporting: tells the user's `on_stats` what an epoch did.
        num_epochs: length of the run; None if not known.
        needs_losses: whether the loop must report the loss of each example.
    """

    def __init__(self, run: Run, reporting: Reporting, num_epochs: int | None, *, needs_losses: bool) -> None:
        self._run, self._reporting, self._num_epochs = run, reporting, num_epochs
        self._needs_losses = needs_losses
        self.num_done = 0
        """Number of completed epochs."""
        self.epoch: AnyEpoch | None = None
        """The epoch under way; None between epochs."""
        self.step: Step | None = None
        """The training step under way; None between steps."""
        self.batch: Batch | None = None
        """The batch taken last; None before the first one."""
        # The states of the epoch to go on with and of the parts, until that epoch's first training step is over.
        self._to_resume: dict[str, Any] | None = None
        self._num_silent = 0  # epochs that gave out no batch
        self._warned_beyond_end = False
        self.loss_call, self.weights_call = "loader.loss(outputs, targets)", "loader.weights()"
        # Batches whose losses the loop has reported, and those whose weights it has asked for, to apply them itself.
        self._with_losses: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._with_weights: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._unreported: Batch | None = None  # the last batch that was taken ahead and must be reported, without data
        self._num_unreported = 0  # batches taken ahead since the last report
        self._has_reported = False  # whether any batch was reported since the epoch began

    def call_in_errors(self, *, loss: str, weights: str) -> None:
        """Set what errors tell users to call, for frameworks whose users do not see the loader.

        Args:
            loss: replaces `loader.loss(outputs, targets)`.
            weights: replaces `loader.weights()`.
        """
        self.loss_call, self.weights_call = loss, weights

    # ---- what the loop does with a batch

    def got_losses(self, batch: Batch, *, has_gradient: bool) -> bool:
        """Take note that the loop computed the loss of this batch, with its weights. False if it did so before.

        has_gradient: whether the loss can be trained on. Otherwise it is only a report.
        """
        is_first = batch not in self._with_losses
        self._with_losses.add(batch)
        if has_gradient or not batch.is_weighted:
            self._with_weights.add(batch)
        self._note_report(batch)
        return is_first

    def got_weights(self, batch: Batch) -> None:
        """Take note that the loop asked for the weights of this batch, to apply them itself."""
        self._with_weights.add(batch)
        self._note_report(batch)

    def _note_report(self, batch: Batch) -> None:
        if batch in self._with_weights and (batch in self._with_losses or not self._needs_losses):
            self._num_unreported, self._has_reported = 0, True

    def check(self, batch: Batch) -> None:
        """Raise if the loop trained on this batch without its weights, or without reporting losses that are needed."""
        name, needs = self._run.parts.method.name, self._run.parts.scorer.needs
        if batch.is_weighted and batch not in self._with_weights:
            only_told = ", whose result had no gradient here" if batch in self._with_losses else ""
            raise RuntimeError(
                f"{name} gives examples weights, but this batch was trained on without them: compute the loss with "
                f"{self.loss_call}{only_told}, or multiply each example's loss by {self.weights_call} yourself"
            )
        if self._needs_losses and batch not in self._with_losses:
            why = (
                f"{name} selects by training losses" if needs.training_losses else "audit=True records training losses"
            )
            raise RuntimeError(
                f"{why}, but got none from this batch: compute the loss with {self.loss_call}. To evaluate, loop over "
                "your own DataLoader"
            )

    def expect_later(self) -> None:
        """Expect the losses of this step's batch later: the caller takes batches ahead of training on them.

        Whether they come is checked when the next epoch begins, or after very many batches.
        """
        if self.step is None:
            return
        batch, self.step = self.step.batch, replace(self.step, is_ahead=True)
        if self._needs_losses or batch.is_weighted:
            self._unreported = replace(batch, data=None)
            self._num_unreported += 1
            if self._num_unreported > _MOST_AHEAD:
                self.check(self._unreported)

    # ---- an epoch

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is under way, or was when the state was saved that was loaded."""
        return self.epoch is not None or self._to_resume is not None

    @property
    def fraction(self) -> float:
        """Fraction of the current epoch's candidates offered so far."""
        if self.epoch is not None:
            return self.epoch.fraction
        return 0.0 if self._to_resume is None else float(self._to_resume["epoch"]["fraction"])

    @property
    def num_ready(self) -> int:
        """Number of training batches that can be taken now."""
        return 0 if self.epoch is None else self.epoch.num_ready

    def begin(self) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        run = self._run
        if self.epoch is not None:
            self.end_epoch()  # a framework left it early
        if self._unreported is not None and not self._has_reported:
            self.check(self._unreported)
        self._unreported, self._num_unreported, self._has_reported = None, 0, False
        if self._to_resume is None:
            self.report_stats()
            self._warn_beyond_the_end()
            run.observer.learn()  # losses of batches that were taken ahead of training
            scorer, recorder = run.parts.scorer, run.observer.recorder
            if isinstance(scorer, AuditedLossScorer) and recorder is not None:
                scorer.learn(recorder.whole(run.team.ranks))
            run.observer.begin_epoch()
            self.epoch = begin_epoch(run, self.num_done)
        else:
            run.observer.begin_epoch()
            self.epoch = resume_epoch(run, self.num_done, self._to_resume["epoch"])
            self._reporting.step_is_over(self.num_done + self.fraction)  # the step in which the state was saved
        self._reporting.begin_epoch()

    def offer(self) -> bool:
        """Load the next batch, and select from it. False when the epoch has no candidates left."""
        assert self.epoch is not None
        observer = self._run.observer
        scored = observer.stats.scored
        has_more = self.epoch.step()
        observer.stats.switch("")
        if has_more:
            if observer.stats.scored > scored and self._run.selector.pipeline is None:
                # No extra wait: scoring has just waited for the device. In the background it waits for its own stream.
                observer.learn()
            return True
        if not self.epoch.num_given and not self.epoch.num_ready:
            offered = observer.stats.offered - self.epoch.began_with.offered
            if not any(self._run.team.count(offered)) and not self._run.source.is_pruned:
                raise ValueError(
                    "the loader is empty: it offered no batch in a whole epoch. If it did before, its sampler is an "
                    "iterator, which can be used only once: pass a list, or an object whose __iter__ starts anew"
                )
        return False

    def take(self) -> Batch | None:
        """Take the next training batch and begin a training step on it. None if no batch is ready."""
        assert self.epoch is not None
        batch = self.epoch.take()
        if batch is not None:
            self.batch = batch
            self.step = Step(batch, self.epoch.number)
            self._run.observer.stats.switch("training")
        return batch

    def next(self) -> Batch | None:
        """Take the next training batch of the epoch; None when it has no more."""
        assert self.epoch is not None
        while not self.epoch.num_ready:
            if not self.offer():
                break
        return self.take()

    def end_step(self) -> None:
        """End the training step on the batch taken last, and learn its losses."""
        step, self.step = self.step, None
        if step is None:
            return
        run = self._run
        run.observer.stats.switch("")
        if not step.is_ahead:
            self.check(step.batch)
        self._to_resume = None  # the epoch that was resumed is under way now
        run.observer.settle()
        if self._reporting.every:
            self._reporting.step_is_over(self.num_done + self.fraction)

    def end_epoch(self) -> None:
        """End the epoch. Candidates that have not been offered yet are dropped."""
        epoch, self.epoch, self.step, self._to_resume = self.epoch, None, None, None
        if epoch is None:
            return
        run = self._run
        run.observer.stats.switch("")
        try:
            run.observer.end_epoch()
        finally:  # the epoch is over even if its last loss is not finite, which is an error
            epoch.end()
            run.parts.share_check.end_epoch(epoch.number)
            self.num_done += 1
        if not epoch.num_given:
            self._note_silence(epoch)

    def leave(self) -> None:
        """Leave the epoch early. If its first batch is still under way, the epoch does not count.

        So a look at one batch, as by `next(iter(loader))`, changes nothing. In an epoch that is resumed, a batch with a
        loss was no look: a run that never stopped would leave the epoch there.
        """
        epoch = self.epoch
        if epoch is None:
            return
        num_trained = epoch.num_given - (self.step is not None)
        if num_trained and (self._to_resume is None or self.batch in self._with_losses):
            self.end_epoch()
            return
        self.epoch = self.step = None
        self._run.observer.stats.switch("")
        epoch.end()
        self._run.observer.forget()
        self._reporting.forget_epoch()
        if self._to_resume is not None:
            self._run.parts.load_state_dict(self._to_resume["parts"])

    def report_stats(self) -> None:
        """Tell `on_stats` what the last epoch did, if that has not been done yet."""
        self._reporting.epoch_is_over(self.num_done + self.fraction)

    def move(self, device: torch.device) -> None:
        """Load candidates to this device from now on, and move what waits there."""
        self._run.source.move(device)
        self._run.observer.follow(device)
        if self.epoch is not None:
            self.epoch.move(device)

    def _warn_beyond_the_end(self) -> None:
        if self._num_epochs is not None and self.num_done >= self._num_epochs and not self._warned_beyond_end:
            self._warned_beyond_end = True
            _logger.warning(
                "epoch %d begins, but this SelectiveLoader was made for num_epochs=%d: progress stays at 1, so a "
                "learning rate by step_by_progress stays where it ended. Pass the length of the run as num_epochs=",
                self.num_done + 1,
                self._num_epochs,
            )

    def _note_silence(self, epoch: AnyEpoch) -> None:
        """Log why an epoch gave out no batch: the first time, and then every tenth time."""
        self._num_silent += 1
        if self._num_silent % 10 != 1 or not self._run.team.is_first:
            return
        stats = self._run.observer.stats
        dropped = stats.dropped - epoch.began_with.dropped
        _logger.warning(
            "an epoch gave out no batch: of %d candidates, %s. Use a smaller batch_size= or a higher selectivity",
            stats.offered - epoch.began_with.offered,
            f"{dropped} were selected, and drop_last drops them because they fill no batch of {self._run.batch_size}"
            if dropped
            else "none was selected",
        )

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        under_way = None if self._to_resume is None else self._to_resume["epoch"]
        if self.epoch is not None:
            under_way = self.epoch.state_dict()
        return {"epoch": self.num_done, "under_way": under_way, "silent": self._num_silent}

    def load_state_dict(self, state: dict[str, Any], parts: dict[str, Any]) -> None:
        """Go on from a saved state. parts: the saved state of the method's parts."""
        self.epoch = self.step = self.batch = self._unreported = None
        self.num_done, self._num_silent = state["epoch"], state["silent"]
        under_way = state["under_way"]
        self._to_resume = None if under_way is None else {"epoch": under_way, "parts": parts}
        if under_way is not None and "queue" in under_way:
            self._run.make_queue().load_state_dict(under_way["queue"])  # or it would fail when the epoch goes on
