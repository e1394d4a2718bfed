"""What comes back from the user's training steps: losses for the ledger, and whether weights were applied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.loader.runner import Runner
from selective_backprop.types import Batch

LOSS_CALL = "loader.loss(outputs, targets)"
"""What errors tell users to call; a framework's users have another way to it."""
WEIGHTS_NAME = "loader.batch.weights"
_MAX_WAITING = 16  # training steps whose losses may wait on a GPU


class WatchedBatch(Batch):
    """A batch with weights, which notes when these are read; looking at anything else is not using them.

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
    """Collects the losses of training steps without making the host wait for the GPU at each of them.

    Raises at the end of a step that left out what the method cannot do without.
    """

    def __init__(self, runner: Runner, device: torch.device) -> None:
        self._runner = runner
        self.device = device
        # ids, losses on their way, epoch, whether all were kept
        self._steps: list[tuple[Tensor | None, tuple[Tensor, Any], int, bool]] = []
        self.weighted = False
        """Whether the batch under way has weights other than 1."""
        self.weights_used = True
        """Whether the weights of the batch under way were applied or read, if it has any."""
        self._losses_given = True
        self.loss_call, self.weights_name = LOSS_CALL, WEIGHTS_NAME

    def expect_for(self, batch: Batch) -> Batch:
        """A step on this batch begins. Returns the batch to show to the caller."""
        self._losses_given = not self._runner.scorer.needs.training_losses
        self.weighted = not bool((batch.weights == 1).all())
        self.weights_used = not self.weighted
        return WatchedBatch.of(batch, self) if self.weighted else batch

    def expect_nothing(self) -> None:
        """The batch was taken ahead: the caller has its weights, and its step may end after others began."""
        self.weights_used = self._losses_given = True

    def add(self, batch: Batch, losses: Tensor | None, epoch: int) -> None:
        """The losses of a step's examples; None where nobody needs them and finding them would cost extra."""
        if losses is not None:
            everything = self._runner.scorer.needs.training_pass  # the losses of all candidates, selected or not
            all_kept = self._runner.schedule.observes_losses and (everything or bool((batch.probabilities == 1).all()))
            self._steps.append((batch.ids, _sent(losses), epoch, all_kept))
        self._losses_given = True

    def step_is_over(self) -> None:
        name = self._runner.method.name
        if not self.weights_used:
            raise RuntimeError(
                f"{name} gives examples weights, and this batch was trained on without them: compute the loss by "
                f"{self.loss_call}, or read {self.weights_name} and apply them yourself"
            )
        if not self._losses_given:
            raise RuntimeError(
                f"{name} selects by the losses of training, and learned none from this batch: compute the loss by "
                f"{self.loss_call}"
            )
        self._learn_if_due()

    def _learn_if_due(self) -> None:
        """On the CPU learn at once; on a GPU wait once in a while, if nothing else did before."""
        if self.device.type == "cpu" or len(self._steps) >= _MAX_WAITING:
            self.learn()

    def learn(self) -> None:
        """Take in what was collected; costs no time when the device has caught up anyway."""
        steps, self._steps = self._steps, []
        for ids, losses, epoch, all_kept in steps:
            self._runner.learn(ids, _received(losses), epoch, all_kept=all_kept)

    def state_dict(self) -> dict[str, Any]:
        # Saving must not change when a GPU's losses are learned, or the run would differ from one without it.
        self._learn_if_due()
        return {"steps": [[ids, _received(losses), epoch, kept] for ids, losses, epoch, kept in self._steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = [(ids, (losses, None), epoch, all_kept) for ids, losses, epoch, all_kept in state["steps"]]
        self.weights_used = self._losses_given = True


def _sent(losses: Tensor) -> tuple[Tensor, Any]:
    """Begin to copy losses to the CPU; the second part tells when they have arrived, if that is to be waited for.

    From a GPU the copy is queued behind the training step. The wait for the next scores is after it, so that reading
    these losses then needs no wait of its own.
    """
    if not losses.is_cuda:
        return losses, None
    with torch.cuda.device(losses.device):
        arriving = losses.float().to("cpu", non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return arriving, arrived


def _received(sent: tuple[Tensor, Any]) -> Tensor:
    losses, arrived = sent
    if arrived is not None:
        arrived.synchronize()
    return losses.to("cpu", torch.float32)
