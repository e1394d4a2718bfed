"""What `loader.loss` computes: the loss to train on, and the loss of each example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.forward_reuse.selected_loss import can_reuse_rows, selected_loss
from selective_backprop.loader.runner import Runner
from selective_backprop.loader.stats import Stats
from selective_backprop.loader.token_share import TokenShare
from selective_backprop.losses import PerExampleLoss, WrongCountError
from selective_backprop.scorers import TrainingPassScorer
from selective_backprop.types import Batch, Candidates

Result = tuple[Tensor, Tensor | None, Batch]
"""The loss to train on, the loss of each example (None if nobody needs it), and the batch as it was trained on."""


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

    def __call__(self, batch: Batch, outputs: Any, targets: Any, epoch: int, weights: Tensor | None) -> Result:
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
        return loss, losses, batch


class ReusedForward(TrainingLoss):
    """Forward reuse: the user's step gets whole candidate batches, and this selects among them by training losses."""

    def __init__(
        self, loss: PerExampleLoss, runner: Runner, model: nn.Module, stats: Stats, *, record: bool = False
    ) -> None:
        super().__init__(loss, runner, record=record)
        self._model, self._stats = model, stats
        self._by_rows: bool | None = None

    def __call__(self, batch: Batch, outputs: Any, targets: Any, epoch: int, weights: Tensor | None) -> Result:
        if not bool(batch.probabilities.isnan().any()):  # selection is off, or this loss was asked for before
            return super().__call__(batch, outputs, targets, epoch, weights)
        scorer, size = self._runner.scorer, len(batch)
        assert isinstance(scorer, TrainingPassScorer)
        found = self._loss.evaluate(outputs, targets, size)
        raw, losses = found.raw, found.losses
        candidates = Candidates(batch.data, batch.ids, size)
        selection = self._runner.select_in_training(scorer.of_outputs(outputs, targets, losses), candidates, epoch)
        count = len(selection.positions)
        self._stats.trained -= size - count  # all candidates were counted as trained when the batch was given out
        self._stats.reused += count
        if count == size and bool((selection.weights == 1).all()):
            return found.own(), losses, Batch(batch.data, batch.ids, batch.weights, selection.probabilities)
        if self._by_rows is None:
            self._by_rows = can_reuse_rows(self._model)
        loss = selected_loss(self._loss, outputs, targets, raw, selection, by_rows=self._by_rows)
        # If loader.loss is called again for this batch, these weights give the same loss, as a mean over all
        # candidates.
        weights = torch.zeros(size).index_add_(0, selection.positions, selection.weights * (size / max(1, count)))
        return loss, losses, Batch(batch.data, batch.ids, weights, selection.probabilities)
