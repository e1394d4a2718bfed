"""Forward reuse: scores from the training pass itself."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor

from selective_backprop.scorers.base import FreshScorer
from selective_backprop.types import Measure, Needs


class TrainingPassScorer(FreshScorer):
    """Forward reuse: whole candidate batches are given out, and `loader.loss` selects among them.

    One forward pass serves both selection and training. The backward pass runs on the selected examples alone. Memory
    is that of training on all candidates.

    Args:
        measure: a score other than the loss: a function from (outputs, targets) to one number per example.
    """

    needs = Needs(training_pass=True, training_losses=True)

    def __init__(self, *, measure: Measure | None = None) -> None:
        self.measure = measure

    def of_outputs(self, outputs: Any, targets: Any, losses: Tensor) -> Tensor:
        """Return the scores of a training pass, detached from its graph."""
        return losses.detach() if self.measure is None else self.measure(outputs, targets).detach()

    def measuring(self, measure: Measure) -> Self:
        scorer = copy.copy(self)
        scorer.measure = measure
        return scorer
