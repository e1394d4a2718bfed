"""Scores that come from training at no extra cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from selective_backprop.files.forms import require_form
from selective_backprop.functional import loss_above_smallest, mean_of_easiest
from selective_backprop.ledger import Column, LedgerRows, before, epoch_before, first, shift
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
        known = loss_above_smallest(rows.loss[rows.loss_epoch >= 0])
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
            require_form(state["memory"], (float, int, bool), "scorer.memory")
            *self._memory.state, self._memory.is_over = state["memory"]


class SecondDifferenceScorer(TrainingLossScorer):
    """Scores each example by the mean of |l_t - 2 l_(t-1) + l_(t-2)| over its last training losses l.

    The score is small if the loss of an example no longer changes, or changes evenly. An example with fewer than three
    losses has no score, so it is trained on. The same holds if its last loss is older than `max_age` epochs.

    Args:
        average: number of second differences in the mean. As long as there are fewer, the mean is over those.
        max_age: number of epochs after which losses no longer count; None for no limit.
    """

    score_name = "second difference of the loss"

    def __init__(self, *, average: int = 3, max_age: int | None = None) -> None:
        if isinstance(average, bool) or not isinstance(average, int) or average < 1:
            raise ValueError(f"average must be a whole number of second differences >= 1, got {average!r}")
        super().__init__(max_age=max_age)
        self.average = average
        earlier = Column("loss", shift, width=average + 1)
        self.needs = dataclasses.replace(self.needs, columns={"earlier_losses": earlier})

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        last = super().recall(ids, rows, epoch)
        losses = torch.cat([last[:, None], rows.earlier_losses], dim=1)
        differences = (losses[:, :-2] - 2 * losses[:, 1:-1] + losses[:, 2:]).abs()
        # A last loss that is missing or too old makes the newest difference NaN, and so the example has no score.
        return differences.nanmean(1).masked_fill(differences[:, 0].isnan(), float("nan"))


class FallScorer(TrainingLossScorer):
    """Scores each example by its last training loss minus its first one, so that the largest fall is lowest.

    An example that was trained on only once has no score, so it is trained on again.

    Args:
        max_age: number of epochs after which a loss no longer counts; None for no limit.
    """

    score_name = "loss since the start"
    needs = dataclasses.replace(TrainingLossScorer.needs, columns={"first_loss": Column("loss", first)})

    def __init__(self, *, max_age: int | None = None) -> None:
        super().__init__(max_age=max_age)

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        losses = super().recall(ids, rows, epoch)
        return (losses - rows.first_loss).masked_fill(rows.loss == rows.first_loss, float("nan"))


class LeastSelectedScorer(Scorer):
    """Scores examples higher the fewer times they were selected, so that all are trained on before any comes again."""

    needs = Needs(ids=True)

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        return -rows.selected.to(torch.float32)
