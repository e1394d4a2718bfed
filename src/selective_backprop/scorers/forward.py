"""Fresh scores from a selection pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from selective_backprop.functional import shrink
from selective_backprop.ledger import Ledger
from selective_backprop.no_trace import NoTrace, ScoringMode
from selective_backprop.types import Candidates, Needs, Task

Measure = Callable[[Any, Any], Tensor]


class ForwardScorer:
    """The loss of each candidate under the model as it is now, without a trace on it.

    Args:
        mode: "eval" scores with every submodule in eval mode. "train" keeps the flags as they are, so that
            BatchNorm normalises by the candidate batch and dropout is drawn, with running statistics frozen.
        measure: another score than the loss, from (outputs, targets) to one number per example.
        scale_factor: below 1, score inputs shrunk to this share of their length, height and width, depth; for
            batches that are pairs, and networks that take them.
    """

    needs = Needs(selection_pass=True)

    def __init__(self, mode: ScoringMode = "eval", *, measure: Measure | None = None, scale_factor: float = 1) -> None:
        if mode not in ("eval", "train"):
            raise ValueError(f"scoring mode must be 'eval' or 'train', got {mode!r}")
        if not 0 < scale_factor <= 1:
            raise ValueError(f"scale_factor must be <= 1 and above 0, got {scale_factor}")
        self.mode = mode
        self.measure = measure
        self.scale_factor = scale_factor
        self._guard: NoTrace | None = None

    def remembers(self, epoch: int) -> bool:
        return False

    def recall(self, ids: Tensor, ledger: Ledger, epoch: int) -> Tensor:
        raise RuntimeError("a forward pass needs loaded candidates")

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        first = self._guard is None or self._guard.model is not task.model
        if self._guard is None or first:
            self._guard = NoTrace(task.model, self.mode)
        data = candidates.data if self.scale_factor == 1 else _shrink_pair(candidates.data, self.scale_factor)
        with self._guard():
            outputs, targets = task.forward(task.model, data)
            if self.measure is None or first:  # a loss that does not work is found at once, also if not needed here
                losses = task.loss.per_example(outputs, targets, candidates.size)
            return losses if self.measure is None else self.measure(outputs, targets)


def _shrink_pair(batch: Any, scale_factor: float) -> tuple[Tensor, Any]:
    if not isinstance(batch, (list, tuple)) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        raise TypeError(
            f"scale_factor needs batches (inputs, targets) with a tensor of inputs, got {type(batch).__name__}"
        )
    return shrink(batch[0], scale_factor), batch[1]
