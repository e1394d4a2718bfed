"""The stepper: gives out training batches one by one, for frameworks that count them and for the loader itself."""

from __future__ import annotations

import logging
from typing import Any

import torch

from selective_backprop.loader.epoch import AnyEpoch, Run, begin_epoch, resume_epoch
from selective_backprop.loader.reporting import Reporting
from selective_backprop.types import Batch

_logger = logging.getLogger(__name__)


class Step:
    """A training step under way: its batch, and what the user's loop has done with it so far.

    Args:
        batch: the batch.
        epoch: number of the batch's epoch.
        needs_losses: whether the loop must report the loss of each example.
    """

    def __init__(self, batch: Batch, epoch: int, *, needs_losses: bool) -> None:
        self.batch, self.epoch = batch, epoch
        self.is_weighted = not bool((batch.weights == 1).all())
        self.is_recorded = False
        """Whether the loss of each example was reported."""
        self.checks_nothing = False
        """Whether the loop may report losses after this step, because it takes batches ahead."""
        self._lacks_weights, self._needs_losses = self.is_weighted, needs_losses

    def got_losses(self) -> None:
        """Take note that the loop computed its loss with the weights, and reported it."""
        self._lacks_weights, self.is_recorded = False, True

    def got_weights(self) -> None:
        """Take note that the loop asked for the weights, to apply them itself."""
        self._lacks_weights = False

    def check(self, run: Run, loss_call: str, weights_call: str) -> None:
        """Raise if the loop did not apply weights or report losses that the method needs."""
        name = run.parts.method.name
        if self.checks_nothing:
            return
        if self._lacks_weights:
            raise RuntimeError(
                f"{name} gives examples weights, but this batch was trained on without them: compute the loss with "
                f"{loss_call}, or multiply each example's loss by {weights_call} yourself"
            )
        if self._needs_losses and not self.is_recorded:
            needed = run.parts.scorer.needs.training_losses
            why = f"{name} selects by training losses" if needed else "audit=True records training losses"
            raise RuntimeError(f"{why}, but got none from this batch: compute the loss with {loss_call}")


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
        self._before = run.observer.stats  # the statistics before the first step of the epoch or of its rest
        self._num_silent = 0  # epochs that gave out no batch
        self._warned_beyond_end = False
        self.loss_call, self.weights_call = "loader.loss(outputs, targets)", "loader.weights()"

    def call_in_errors(self, *, loss: str, weights: str) -> None:
        """Set what errors tell users to call, for frameworks whose users do not see the loader.

        Args:
            loss: replaces `loader.loss(outputs, targets)`.
            weights: replaces `loader.weights()`.
        """
        self.loss_call, self.weights_call = loss, weights

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
        if self._to_resume is None:
            self.report_stats()
            self._warn_beyond_the_end()
            run.observer.learn()  # losses of batches that were taken ahead of training
            if run.parts.scorer.needs.dynamics and run.observer.recorder is not None:
                run.parts.scorer.learn_dynamics(run.observer.recorder.whole(run.team.ranks))
            self._before = run.observer.begin_epoch()
            self.epoch = begin_epoch(run, self.num_done)
        else:
            self._before = run.observer.begin_epoch()
            self.epoch = resume_epoch(run, self.num_done, self._to_resume["epoch"])
        self._reporting.begin_epoch()

    def offer(self) -> bool:
        """Load the next batch, and select from it. False when the epoch has no candidates left."""
        assert self.epoch is not None
        scored = self._run.observer.stats.scored
        if self.epoch.step():
            if self._run.observer.stats.scored > scored:
                self._run.observer.learn()  # no extra wait: scoring has just waited for the device
            return True
        if self.num_done == 0 and not any(self._run.team.count(self._run.observer.stats.offered)):
            raise ValueError("the loader is empty: it offered no batch in a whole epoch")
        return False

    def take(self) -> Batch | None:
        """Take the next training batch and begin a training step on it. None if no batch is ready."""
        assert self.epoch is not None
        batch = self.epoch.take()
        if batch is not None:
            self.batch = batch
            self.step = Step(batch, self.epoch.number, needs_losses=self._needs_losses)
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
        step.check(run, self.loss_call, self.weights_call)
        self._to_resume = None  # the epoch that was resumed is under way now
        run.observer.commit()
        run.observer.learn_if_due()
        self._reporting.step_is_over(self.num_done + self.fraction)

    def expect_nothing(self) -> None:
        """Check nothing at the end of this step: the caller takes batches ahead, so steps may overlap."""
        if self.step is not None:
            self.step.checks_nothing = True

    def end_epoch(self) -> None:
        """End the epoch. Candidates that have not been offered yet are dropped."""
        epoch, self.epoch, self.step, self._to_resume = self.epoch, None, None, None
        if epoch is None:
            return
        run = self._run
        run.observer.stats.switch("")
        run.observer.commit()
        run.observer.learn()
        epoch.end()
        run.parts.share_check.end_epoch(epoch.number)
        self.num_done += 1
        if not epoch.num_given:
            self._note_silence(epoch)

    def leave(self) -> None:
        """Leave the epoch early. If its first batch is still under way, the epoch does not count.

        So a look at one batch, as by `next(iter(loader))`, changes nothing.
        """
        epoch = self.epoch
        if epoch is None:
            return
        num_trained = epoch.num_given - (self.step is not None)
        if num_trained and self._to_resume is None:
            self.end_epoch()
            return
        self.epoch = self.step = None
        self._run.observer.stats.switch("")
        epoch.end()
        self._run.observer.forget(self._before)
        self._reporting.forget_epoch()
        if self._to_resume is not None:
            self._run.parts.load_state_dict(self._to_resume["parts"])

    def report_stats(self) -> None:
        """Tell `on_stats` what the last epoch did, if that has not been done yet."""
        self._reporting.epoch_is_over(self.num_done + self.fraction)

    def move(self, device: torch.device) -> None:
        """Load candidates to this device from now on, and move what waits there."""
        self._run.source.device = device
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
            self._run.observer.commit()  # a state that is saved in the first step of an epoch counts it
        return {"epoch": self.num_done, "under_way": under_way, "silent": self._num_silent}

    def load_state_dict(self, state: dict[str, Any], parts: dict[str, Any]) -> None:
        """Go on from a saved state. parts: the saved state of the method's parts."""
        self.epoch = self.step = self.batch = None
        self.num_done, self._num_silent = state["epoch"], state["silent"]
        self._to_resume = None if state["under_way"] is None else {"epoch": state["under_way"], "parts": parts}
