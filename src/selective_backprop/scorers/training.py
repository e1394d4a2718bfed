"""Scores that come from training at no extra cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from selective_backprop.functional import excess_loss, mean_of_easiest
from selective_backprop.ledger import Column, LedgerRows, before, epoch_before
from selective_backprop.options import require_numbers
from selective_backprop.scorers.forgetting import ForgettingCheck, comes_back
from selective_backprop.scorers.remembering import MemoryCheck
from selective_backprop.types import Needs, Scorer

_LOSS_BEFORE = {
    "loss_before": Column("loss", before),
    "loss_before_epoch": Column("loss", epoch_before, dtype=torch.int32, fill=-1),
}


class TrainingLossScorer(Scorer):
    """Scores each example by its last training loss. There is never a selection pass.

    An example that was not trained on yet, or not within the last `max_age` epochs, has no score. So it is trained on,
    and gets one.

    Args:
        max_age: number of epochs after which a loss no longer counts; None for no limit.
        most_rise: if the loss of examples that were left out rises by more than this share of the mean loss of the
            easiest 95%, by the median, no example has a score from then on; see `ForgettingCheck`. A few examples come
            back in every epoch for that. It also warns if losses are noise; see `MemoryCheck`. None for neither check.
            With several ranks, each goes by its own candidates.
    """

    needs = Needs(ids=True, training_losses=True)

    def __init__(self, *, max_age: int | None = None, most_rise: float | None = None) -> None:
        require_numbers(max_age=1 if max_age is None else max_age)
        if max_age is not None and not max_age >= 1:  # also if it is NaN
            raise ValueError(f"max_age must be at least 1 epoch, got {max_age}")
        self.max_age = max_age
        self.most_rise = most_rise
        self._forgetting = None if most_rise is None else ForgettingCheck(most_rise)
        self._memory = MemoryCheck()
        if most_rise is not None:
            self.needs = dataclasses.replace(self.needs, columns=_LOSS_BEFORE)

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        losses = rows.loss
        if self._forgetting is not None:
            losses = losses.masked_fill(self._must_come_back(self._forgetting, ids, rows, epoch), float("nan"))
        if self.max_age is None:
            return losses
        return losses.masked_fill(rows.loss_epoch <= epoch - self.max_age, float("nan"))

    def _must_come_back(self, check: ForgettingCheck, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        """Whether each example is trained on in any case: it is its turn, or what is left out is forgotten."""
        earlier, earlier_epochs = rows.loss_before, rows.loss_before_epoch
        if epoch > 2 and not self._memory.is_over:  # in the first epoch, losses fall too fast to be compared
            again = (rows.loss_epoch == epoch - 1) & (earlier_epochs == epoch - 2)
            self._memory.learn(earlier[again], rows.loss[again])
        # These were trained on in the latest epoch, and before that left out for one epoch or more.
        came_back = (rows.loss_epoch == epoch - 1) & (earlier_epochs >= 0) & (earlier_epochs < epoch - 2)
        known = excess_loss(rows.loss[rows.loss_epoch >= 0])
        check.learn(earlier[came_back], rows.loss[came_back], mean_of_easiest(known))
        return torch.ones_like(came_back) if check.forgets else comes_back(ids, epoch)

    def explanation(self) -> str | None:
        return None if self._forgetting is None else self._forgetting.explanation()

    def state_dict(self) -> dict[str, Any]:
        if self._forgetting is None:
            return {}
        memory = [*self._memory.state, self._memory.is_over]
        return {"forgetting": self._forgetting.state_dict(), "memory": memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._forgetting is not None:
            self._forgetting.load_state_dict(state["forgetting"])
            *self._memory.state, self._memory.is_over = state["memory"]


class LeastSelectedScorer(Scorer):
    """Scores examples higher the fewer times they were selected, so that all are trained on before any comes again."""

    needs = Needs(ids=True)

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return -rows.selected.to(torch.float32)
