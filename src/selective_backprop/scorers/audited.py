"""Training losses that leave alone examples whose label is probably wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from selective_backprop.dynamics.auditing import audit
from selective_backprop.dynamics.log import Dynamics
from selective_backprop.ledger import LedgerRows
from selective_backprop.scorers.forgetting import ForgettingCheck
from selective_backprop.scorers.training import TrainingLossScorer

_ABOVE = 0.7  # probability of a wrong label from which on an example is left alone
_FEWEST_EPOCHS = 2
_MOST_NOISE = 0.3


class AuditedLossScorer(TrainingLossScorer):
    """Scores each example by its last training loss, except those whose label is probably wrong: they have the lowest.

    The run is audited before every epoch. An example whose label is wrong with a probability above 0.7 is a suspect,
    until it is trained on again and looks better. Nothing is done in the first two epochs, and while the share of wrong
    labels seems to be above 0.3: then the network knows too little to judge.

    Args:
        max_age: as for `TrainingLossScorer`. A suspect is trained on again when its loss is too old.
        most_rise: as for `TrainingLossScorer`.
    """

    def __init__(self, *, max_age: int | None = None, most_rise: float | None = None) -> None:
        super().__init__(max_age=max_age, most_rise=most_rise)
        self.suspects: Tensor | None = None
        """(M,) bool by id: whether audits called the label wrong; None before the first epoch."""

    def options_in_method(self) -> list[str]:
        return [*super().options_in_method(), "audit=True"]

    def learn_dynamics(self, dynamics: Dynamics) -> None:
        """Audit what was recorded so far. The loader calls this before every epoch."""
        suspects = torch.zeros(len(dynamics), dtype=torch.bool) if self.suspects is None else self.suspects.clone()
        if len(dynamics.epochs) >= _FEWEST_EPOCHS:
            # What was left alone has no fresh evidence, so it stays a suspect until it is trained on again.
            suspects[torch.from_numpy(dynamics.rows(dynamics.epochs[-1])["id"].astype(np.int64))] = False
            found = audit(dynamics)
            if found.noise_rate <= _MOST_NOISE:
                suspects[torch.from_numpy(found.suspects(_ABOVE))] = True
        self.suspects = suspects

    def _must_come_back(self, check: ForgettingCheck, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        must = super()._must_come_back(check, ids, rows, epoch)
        return must if self.suspects is None else must & ~self.suspects[ids]

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        losses = super().recall(ids, rows, epoch)
        if self.suspects is None or not len(ids):
            return losses
        lowest = losses.nan_to_num(0.0).min().clamp(max=0.0)
        # An example without a score is trained on, and so gets fresh evidence.
        return losses.where(~self.suspects[ids] | losses.isnan(), lowest)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"suspects": self.suspects}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.suspects = state["suspects"]
