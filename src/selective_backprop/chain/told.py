"""Told: what the loop told about each batch, and errors if it did not apply weights or report losses."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from selective_backprop.run import Run
from selective_backprop.types import Batch

_MOST_AHEAD = 1000  # batches that a loop may take before it reports the loss of any of them


@dataclass(eq=False)
class Step:
    """What the loop did with a training batch."""

    number: int
    """Number of batches given out before it."""
    epoch: int
    """Number of the batch's epoch."""
    has_losses: bool = False
    """Whether the loop computed its loss with the loader."""
    has_weights: bool = False
    """Whether the loop applied its weights."""


class Told:
    """What the loop told about batches.

    Args:
        run: the method, and what it needs.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.needs_losses = run.recorder is not None or run.scorer.needs.training_losses
        """Whether the loop must report the loss of each example."""
        self.taken: WeakKeyDictionary[Batch, Step] = WeakKeyDictionary()
        """Batches that were taken before the loop reported the losses of earlier ones."""
        self.loss_call, self.weights_call = "loader.loss(outputs, targets)", "loader.weights()"
        self.forget()

    def forget(self) -> None:
        """Expect nothing any more."""
        self._unreported: tuple[Step, bool] | None = None  # the last that must be reported, and whether it has weights
        self._num_unreported = 0

    def call_in_errors(self, *, loss: str, weights: str) -> None:
        """Set what errors tell users to call, for frameworks whose users do not see the loader.

        Args:
            loss: replaces `loader.loss(outputs, targets)`.
            weights: replaces `loader.weights()`.
        """
        self.loss_call, self.weights_call = loss, weights

    def report(self, step: Step, *, losses: bool, weights: bool) -> None:
        """Take note that the loop computed the loss of a batch, or applied its weights."""
        step.has_losses, step.has_weights = step.has_losses or losses, step.has_weights or weights
        if self._unreported is not None and step.has_weights and (step.has_losses or not self.needs_losses):
            self._unreported, self._num_unreported = None, 0

    def expect(self, step: Step, is_weighted: bool) -> None:
        """Expect the losses of a batch later. Whether any come is checked when the next epoch begins."""
        if (step.has_weights or not is_weighted) and (step.has_losses or not self.needs_losses):
            return
        self._unreported, self._num_unreported = (step, is_weighted), self._num_unreported + 1
        if self._num_unreported > _MOST_AHEAD:
            self.check(step, is_weighted)

    def check(self, step: Step, is_weighted: bool) -> None:
        """Raise if the loop trained on a batch without its weights, or without reporting losses that are needed."""
        name, needs = self._run.method.name, self._run.scorer.needs
        if is_weighted and not step.has_weights:
            only_told = ", whose result had no gradient here" if step.has_losses else ""
            raise RuntimeError(
                f"{name} gives examples weights, but this batch was trained on without them: compute the loss with "
                f"{self.loss_call}{only_told}, or multiply each example's loss by {self.weights_call} yourself"
            )
        if self.needs_losses and not step.has_losses:
            why = (
                f"{name} selects by training losses" if needs.training_losses else "audit=True records training losses"
            )
            raise RuntimeError(
                f"{why}, but got none from this batch: compute the loss with {self.loss_call}. To evaluate, loop over "
                "your own DataLoader"
            )

    def check_unreported(self) -> None:
        """Raise if nothing was reported about batches that were taken ahead."""
        if self._unreported is not None:
            self.check(*self._unreported)
