"""Scores from a selection pass: a forward pass of the model as it is now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from selective_backprop.functional import shrink
from selective_backprop.inference import NoTrace, ScoringMode
from selective_backprop.options import require_numbers
from selective_backprop.scorers.base import FreshScorer
from selective_backprop.types import Candidates, Measure, Task


class ForwardScorer(FreshScorer):
    """Scores each candidate by its loss under the model as it is now. The model is left unchanged.

    Args:
        mode: "eval" scores with every submodule in eval mode. "train" leaves the modes as they are, so that BatchNorm
            normalises by the candidate batch and dropout is drawn; running statistics are frozen.
        measure: a score other than the loss: a function from (outputs, targets) to one number per example.
        scale_factor: if below 1, inputs are shrunk by this factor along all their axes (length; height and width;
            depth). This needs batches that are pairs, and a network that takes smaller inputs.

    >>> ForwardScorer(scale_factor=2)
    Traceback (most recent call last):
    ValueError: scale_factor must be <= 1 and above 0, got 2
    """

    def __init__(self, mode: ScoringMode = "eval", *, measure: Measure | None = None, scale_factor: float = 1) -> None:
        if mode not in ("eval", "train"):
            raise ValueError(f"scoring mode must be 'eval' or 'train', got {mode!r}")
        require_numbers(scale_factor=scale_factor)
        if not 0 < scale_factor <= 1:
            raise ValueError(f"scale_factor must be <= 1 and above 0, got {scale_factor}")
        self.mode = mode
        self.measure = measure
        self.scale_factor = scale_factor
        self.score_name = "loss" if measure is None else "score"
        self._guard: NoTrace | None = None
        self._loss_works = False

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        if self._guard is None or self._guard.model is not task.model:
            self._guard = NoTrace(task.model, self.mode)
        with self._guard():
            return self._measured(candidates, task)

    def score_copy(self, candidates: Candidates, task: Task) -> Tensor:
        """Return the same scores in a background thread, with a copy of the model that need not be left as it was."""
        with torch.no_grad():  # and without touching global random states: the main thread draws from them
            return self._measured(candidates, task)

    def _measured(self, candidates: Candidates, task: Task) -> Tensor:
        if self.scale_factor != 1:
            candidates = replace(candidates, data=_shrink_pair(candidates.data, self.scale_factor))
        outputs, targets = self._forward(candidates, task)
        if self.measure is not None and self._loss_works:
            return self.measure(outputs, targets)
        losses = task.loss.per_example(outputs, targets, candidates.size)
        self._loss_works = True  # the loss is tried once even if a measure is used, to find out early if it fails
        return losses if self.measure is None else self.measure(outputs, targets)

    def _forward(self, candidates: Candidates, task: Task) -> tuple[Any, Any]:
        """Run the model. If the first pass over smaller inputs fails, explain why."""
        try:
            return task.forward(task.model, candidates.data)
        except Exception as error:  # a network may raise any error for inputs of another size
            if self.scale_factor == 1 or self._loss_works:
                raise
            raise ValueError(
                f"your model does not take inputs at scale_factor {self.scale_factor}: score at full size, or end its "
                f"convolutions with global pooling. Its error was: {error}"
            ) from error


def _shrink_pair(batch: Any, scale_factor: float) -> tuple[Tensor, Any]:
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        raise TypeError(
            f"scale_factor needs batches of the form (inputs, targets) where inputs is a tensor, got "
            f"{type(batch).__name__}"
        )
    return shrink(batch[0], scale_factor), batch[1]
