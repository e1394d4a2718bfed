"""Feedback: collects losses from the user's training steps, and checks that weights were applied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.loader.copying import MAX_WAITING, Copy, begin_copy, finish_copy
from selective_backprop.loader.runner import Runner
from selective_backprop.types import Batch

LOSS_CALL = "loader.loss(outputs, targets)"
"""What errors tell users to call. Integrations with frameworks replace it."""
WEIGHTS_NAME = "loader.batch.weights"


class WatchedBatch(Batch):
    """A batch that notes when its weights are read. Reading other attributes, len() and repr() do not count.

    >>> ones = torch.ones(2)
    >>> "weights=tensor([1., 1.])" in repr(WatchedBatch(None, None, ones, ones))
    True
    """

    feedback: Feedback | None = None

    @classmethod
    def of(cls, batch: Batch, feedback: Feedback) -> WatchedBatch:
        watched = cls(batch.data, batch.ids, batch.weights, batch.probabilities)
        object.__setattr__(watched, "feedback", feedback)
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name == "weights" and (feedback := object.__getattribute__(self, "feedback")) is not None:
            feedback.weights_used = True
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return repr(self._plain())

    def __len__(self) -> int:
        return len(self._plain())

    def __reduce__(self) -> Any:
        plain = self._plain()
        return Batch, (plain.data, plain.ids, plain.weights, plain.probabilities)

    def _plain(self) -> Batch:
        parts = vars(self)
        return Batch(parts["data"], parts["ids"], parts["weights"], parts["probabilities"])


class Feedback:
    """Collects the losses of training steps, without waiting for the GPU at every step.

    At the end of a step it raises if the step did not apply weights or report losses although they are needed.

    Args:
        runner: learns the losses.
        device: the device of the model.
        record: what the loader records, which needs losses too; None if nothing.
    """

    def __init__(self, runner: Runner, device: torch.device, *, record: str | None = None) -> None:
        self._runner, self._record = runner, record
        self.device = device
        # For each step: ids, losses on their way to the CPU, epoch, whether every candidate was kept.
        self._steps: list[tuple[Tensor | None, Copy, int, bool]] = []
        self.weighted = False
        """Whether the current batch has weights other than 1."""
        self.weights_used = True
        """Whether the current batch's weights were applied or read. True if all of them are 1."""
        self._losses_given = True
        self.loss_call, self.weights_name = LOSS_CALL, WEIGHTS_NAME

    def expect_for(self, batch: Batch) -> Batch:
        """Begin a training step on this batch. Returns the batch to give to the caller."""
        self._losses_given = not self._runner.scorer.needs.training_losses and self._record is None
        self.weighted = not bool((batch.weights == 1).all())
        self.weights_used = not self.weighted
        return WatchedBatch.of(batch, self) if self.weighted else batch

    def expect_nothing(self) -> None:
        """Check nothing at the end of this step: the caller takes batches ahead, so steps may overlap."""
        self.weights_used = self._losses_given = True

    def add(self, batch: Batch, losses: Tensor | None, epoch: int) -> None:
        """Add the losses of a step's examples. None: nobody needs them, and computing them would cost extra."""
        if losses is not None:
            all_kept = self._runner.schedule.observes_losses and bool((batch.probabilities == 1).all())
            self._steps.append((batch.ids, begin_copy(losses), epoch, all_kept))
        self._losses_given = True

    def step_is_over(self) -> None:
        """End a training step. Raises if it did not use weights or report losses that the method needs."""
        name = self._runner.method.name
        if not self.weights_used:
            raise RuntimeError(
                f"{name} gives examples weights, but this batch was trained on without them: compute the loss with "
                f"{self.loss_call}, or read {self.weights_name} and apply them yourself"
            )
        if not self._losses_given:
            needed = self._runner.scorer.needs.training_losses
            why = f"{name} selects by training losses" if needed else f"record={self._record!r} records training losses"
            raise RuntimeError(f"{why}, but got none from this batch: compute the loss with {self.loss_call}")
        self.learn_if_due()

    def learn_if_due(self) -> None:
        """Learn at once on the CPU. On a GPU, learn only when many steps have piled up, because that waits for it."""
        if self.device.type == "cpu" or len(self._steps) >= MAX_WAITING:
            self.learn()

    def learn(self) -> None:
        """Hand the collected losses to the runner. This waits for the device unless it has already finished them."""
        steps, self._steps = self._steps, []
        for ids, losses, epoch, all_kept in steps:
            self._runner.learn(ids, finish_copy(losses), epoch, all_kept=all_kept)

    def state_dict(self) -> dict[str, Any]:
        # Saving must not change when losses on a GPU are learned. Otherwise a run that saves would differ from others.
        self.learn_if_due()
        return {"steps": [[ids, finish_copy(losses), epoch, kept] for ids, losses, epoch, kept in self._steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = [(ids, (losses, None), epoch, all_kept) for ids, losses, epoch, all_kept in state["steps"]]
        self.weights_used = self._losses_given = True
