"""How far the loss of each example has fallen since the start of training."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from selective_backprop.ledger import Column, LedgerRows, first
from selective_backprop.scorers.base import require_one_each
from selective_backprop.scorers.training import TrainingLossScorer


class FallScorer(TrainingLossScorer):
    """Scores each example by its last training loss minus its loss at the start, so that the largest fall is lowest.

    The ledger knows both losses. An example that was trained on only once has no score, so it is trained on again.

    Args:
        reference: the loss of each example at the start, by id. Without it, the start is the example's first training
            loss.
        max_age: number of epochs after which a loss no longer counts; None for no limit.
    """

    score_name = "loss since the start"

    def __init__(self, *, reference: Tensor | None = None, max_age: int | None = None) -> None:
        super().__init__(max_age=max_age)
        if reference is not None and (reference.dim() != 1 or not bool(torch.isfinite(reference).all())):
            raise ValueError(
                f"reference losses must be finite, one per id, got shape {tuple(reference.shape)} with "
                f"{int((~torch.isfinite(reference)).sum())} that are not finite"
            )
        self.reference = reference
        if reference is None:
            self.needs = replace(self.needs, columns={"first_loss": Column("loss", first)})

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        if self.reference is not None:
            require_one_each("the reference losses are", len(self.reference), num_examples)

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        losses = super().recall(ids, rows, epoch)
        if self.reference is not None:
            return losses - self.reference[ids].to(losses)
        return (losses - rows.first_loss).masked_fill(rows.loss == rows.first_loss, float("nan"))
