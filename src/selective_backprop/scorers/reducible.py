"""Reducible loss: the loss minus that of a reference model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from selective_backprop.inference import device_of, unwrap
from selective_backprop.scorers.base import Wrapping, require_one_each
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.types import Candidates, Needs, Scorer, Task


class ReducibleLossScorer(Wrapping):
    """Scores by the loss minus the loss of a reference model.

    The score is low for examples that are learned already, and for examples that cannot be learned.

    Args:
        fresh: scores with the model being trained.
        reference: a model trained on held-out data, or its loss of each example, by id.

    Mindermann et al. 2022, https://arxiv.org/abs/2206.07137.
    """

    def __init__(self, fresh: Scorer, reference: nn.Module | Tensor) -> None:
        if isinstance(reference, Tensor):
            if reference.dim() != 1 or not bool(torch.isfinite(reference).all()):
                raise ValueError(
                    f"reference losses must be finite, one per id, got shape {tuple(reference.shape)} with "
                    f"{int((~torch.isfinite(reference)).sum())} that are not finite"
                )
        elif not isinstance(reference, nn.Module):
            raise TypeError(f"reference must be a model or a tensor of losses, got {type(reference).__name__}")
        super().__init__(fresh)
        self.score_name = "reducible loss"
        self.reference = reference
        self.needs = Needs(ids=isinstance(reference, Tensor), selection_pass=True)
        self._of_reference = ForwardScorer("eval")

    def __deepcopy__(self, memo: dict[int, object]) -> ReducibleLossScorer:
        # The reference is not copied: it may be large, and it is only read.
        return ReducibleLossScorer(copy.deepcopy(self.fresh, memo), self.reference)

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        super().check_run(num_examples, num_epochs)
        if isinstance(self.reference, Tensor):
            require_one_each("the reference losses are", len(self.reference), num_examples)

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        losses = self.fresh.score(candidates, task)
        if isinstance(self.reference, nn.Module):
            model = unwrap(self.reference)
            if device_of(model) != device_of(task.model):
                raise ValueError(
                    f"the reference model is on {device_of(model)}, but the model being trained is on "
                    f"{device_of(task.model)}: move the reference model there"
                )
            return losses - self._of_reference.score(candidates, Task(model, task.forward, task.loss))
        assert candidates.ids is not None
        return losses - self.reference[candidates.ids].to(losses, non_blocking=True)
