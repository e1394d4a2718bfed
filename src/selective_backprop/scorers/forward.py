"""Scores from a selection pass: a forward pass of the model as it is now."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from selective_backprop.functional import shrink
from selective_backprop.inference import NoTrace, ScoringMode
from selective_backprop.scorers.base import Audit, FreshScorer
from selective_backprop.types import Candidates, Measure, Task


class ModelCopy(Protocol):
    """A cheaper copy of the model whose weights follow those of the model."""

    def current(self, candidates: Candidates, task: Task) -> nn.Module:
        """Return the module to score these candidates with, brought up to date if that is due."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ForwardScorer(FreshScorer):
    """Scores each candidate by its loss under the model as it is now. The model is left unchanged.

    Args:
        mode: "eval" scores with every submodule in eval mode. "train" leaves the modes as they are, so that BatchNorm
            normalises by the candidate batch and dropout is drawn; running statistics are frozen.
        measure: a score other than the loss: a function from (outputs, targets) to one number per example.
        scale_factor: if below 1, inputs are shrunk by this factor along all their axes (length; height and width;
            depth). This needs batches that are pairs, and a network that takes smaller inputs.
        model_copy: scores with a cheaper copy of the model; only in mode "eval".
        audit_every: with a scale_factor or a model_copy, compare with exact scores once in this many candidate batches.
    """

    def __init__(
        self,
        mode: ScoringMode = "eval",
        *,
        measure: Measure | None = None,
        scale_factor: float = 1,
        model_copy: ModelCopy | None = None,
        audit_every: int = 100,
    ) -> None:
        if mode not in ("eval", "train"):
            raise ValueError(f"scoring mode must be 'eval' or 'train', got {mode!r}")
        if not 0 < scale_factor <= 1:
            raise ValueError(f"scale_factor must be <= 1 and above 0, got {scale_factor}")
        if model_copy is not None and mode == "train":
            raise ValueError("a model_copy scores in eval mode only, got mode 'train'")
        self.mode = mode
        self.measure = measure
        self.scale_factor = scale_factor
        self.model_copy = model_copy
        self.audit_every = audit_every
        exact = scale_factor == 1 and model_copy is None
        self._audit = None if exact else Audit(ForwardScorer(mode, measure=measure), audit_every)
        self._guard: NoTrace | None = None
        self._loss_works = False

    @property
    def fidelity(self) -> float:  # type: ignore[override]
        return 1.0 if self._audit is None else self._audit.fidelity

    @property
    def score_name(self) -> str:  # type: ignore[override]
        return "loss" if self.measure is None else "score"

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        shown, model = self._seen(candidates, task)
        if self._guard is None or self._guard.model is not model:
            self._guard = NoTrace(model, self.mode)
        with self._guard():
            scores = self._measured(model, shown, task)
        if self._audit is not None:
            self._audit(scores, candidates, task)
        return scores

    def score_copy(self, candidates: Candidates, task: Task) -> Tensor:
        shown, model = self._seen(candidates, task)
        with torch.no_grad():
            return self._measured(model, shown, task)

    def _seen(self, candidates: Candidates, task: Task) -> tuple[Candidates, nn.Module]:
        """Return the candidates to score, which may be shrunk, and the model that scores them, which may be a copy."""
        if self.scale_factor != 1:
            candidates = replace(candidates, data=_shrink_pair(candidates.data, self.scale_factor))
        return candidates, task.model if self.model_copy is None else self.model_copy.current(candidates, task)

    def _measured(self, model: nn.Module, candidates: Candidates, task: Task) -> Tensor:
        if self.scale_factor == 1 or self._loss_works:
            outputs, targets = task.forward(model, candidates.data)
        else:
            outputs, targets = self._first_forward(model, candidates, task)
        if self.measure is not None and self._loss_works:
            return self.measure(outputs, targets)
        losses = task.loss.per_example(outputs, targets, candidates.size)
        self._loss_works = True  # the loss is tried once even if a measure is used, to find out early if it fails
        return losses if self.measure is None else self.measure(outputs, targets)

    def _first_forward(self, model: nn.Module, candidates: Candidates, task: Task) -> tuple[Any, Any]:
        """Make the first pass over smaller inputs, and explain the error if the network does not take them."""
        try:
            return task.forward(model, candidates.data)
        except Exception as error:  # a network may raise any error for inputs of another size
            raise ValueError(
                f"your model does not take inputs at scale_factor {self.scale_factor}: score at full size, or end its "
                f"convolutions with global pooling. Its error was: {error}"
            ) from error

    def measuring(self, measure: Measure) -> Self:
        scorer = copy.copy(self)
        scorer.measure = measure
        scorer._audit = self._audit.measuring(measure) if self._audit is not None else None
        return scorer

    def state_dict(self) -> dict[str, Any]:
        parts = {"audit": self._audit, "model_copy": self.model_copy}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._audit is not None:
            self._audit.load_state_dict(state["audit"])
        if self.model_copy is not None:
            self.model_copy.load_state_dict(state["model_copy"])


def _shrink_pair(batch: Any, scale_factor: float) -> tuple[Tensor, Any]:
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        raise TypeError(
            f"scale_factor needs batches of the form (inputs, targets) where inputs is a tensor, got "
            f"{type(batch).__name__}"
        )
    return shrink(batch[0], scale_factor), batch[1]
