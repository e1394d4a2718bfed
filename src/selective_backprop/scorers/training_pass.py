"""Scores that come out of the training pass itself."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor

from selective_backprop.scorers.base import FreshScorer
from selective_backprop.types import Measure, Needs


class TrainingPassScorer(FreshScorer):
    """Forward reuse: whole candidate batches are given out, and `loader.loss` selects among them.

    One forward pass serves selection and training, and the backward pass runs on the selected examples alone. It
    keeps what a backward pass over all candidates would need in memory.

    Args:
        measure: another score than the loss, from (outputs, targets) to one number per example.
    """

    needs = Needs(training_pass=True, training_losses=True)

    def __init__(self, *, measure: Measure | None = None) -> None:
        self.measure = measure

    def of_outputs(self, outputs: Any, targets: Any, losses: Tensor) -> Tensor:
        """The scores of a training pass, without its graph."""
        return losses.detach() if self.measure is None else self.measure(outputs, targets).detach()

    def measuring(self, measure: Measure) -> Self:
        scorer = copy.copy(self)
        scorer.measure = measure
        return scorer
