"""What `loader.loss` computes: the loss to train on, and the loss of each example."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from selective_backprop.loader.runner import Runner
from selective_backprop.loader.token_share import TokenShare
from selective_backprop.losses import PerExampleLoss, WrongCountError
from selective_backprop.types import Batch

Result = tuple[Tensor, Tensor | None]
"""The loss to train on, and the loss of each example; None if nobody needs it."""


class TrainingLoss:
    """Computes the user's loss of a batch, with the weights of its examples applied.

    Args:
        loss: the user's loss.
        runner: says whether the loss of each example is needed.
        token_share: weights of tokens, if only some of them are trained on.
        record: whether the loss of each example is needed anyway.
    """

    def __init__(
        self, loss: PerExampleLoss, runner: Runner, token_share: TokenShare | None = None, *, record: bool = False
    ) -> None:
        self._loss, self._runner, self._token_share, self._record = loss, runner, token_share, record

    def __call__(self, batch: Batch, outputs: Any, targets: Any, weights: Tensor | None) -> Result:
        """Compute the loss. weights: the batch's weights, on the device; None if all of them are 1."""
        token_weights = None
        if (token_share := self._token_share) is not None:

            def token_weights(raw: Tensor) -> Tensor:
                return token_share.weights(raw, targets, batch)

        try:
            loss, losses = self._loss.for_training(
                outputs,
                targets,
                weights,
                len(batch),
                record=self._record or self._runner.learns_losses,
                token_weights=token_weights,
            )
        except WrongCountError as error:
            raise ValueError(
                f"{error}. loader.loss is for the batch that the loader gave out; for other batches, such as "
                "validation, call your loss function itself"
            ) from None
        return loss, losses
