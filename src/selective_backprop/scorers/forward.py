"""Fresh losses from a selection pass."""

from __future__ import annotations

from torch import Tensor

from selective_backprop.ledger import Ledger
from selective_backprop.no_trace import NoTrace, ScoringMode
from selective_backprop.types import Candidates, Task


class ForwardScorer:
    """The loss of each candidate under the model as it is now, without a trace on it.

    Args:
        mode: "eval" scores with every submodule in eval mode. "train" keeps the flags as they are, so that
            BatchNorm normalises by the candidate batch and dropout is drawn, with running statistics frozen.
    """

    needs_ids = False
    uses_model = True

    def __init__(self, mode: ScoringMode = "eval") -> None:
        if mode not in ("eval", "train"):
            raise ValueError(f"scoring mode must be 'eval' or 'train', got {mode!r}")
        self.mode = mode
        self._guard: NoTrace | None = None

    def remembers(self, epoch: int) -> bool:
        return False

    def recall(self, ids: Tensor, ledger: Ledger, epoch: int) -> Tensor:
        raise RuntimeError("a forward pass needs loaded candidates")

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        if self._guard is None or self._guard.model is not task.model:
            self._guard = NoTrace(task.model, self.mode)
        with self._guard():
            outputs, targets = task.forward(task.model, candidates.data)
            return task.loss.per_example(outputs, targets, candidates.size)
