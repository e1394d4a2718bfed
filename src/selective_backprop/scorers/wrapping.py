"""What scorers share that get fresh scores from another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.types import Candidates, Scorer, Task


class Wrapping(Described):
    """Hands loaded candidates to `fresh`, whose fidelity and state are its own."""

    fresh: Scorer

    def __init__(self, fresh: Scorer) -> None:
        if fresh.needs.training_pass:
            raise ValueError(f"{type(self).__name__} needs a selection pass, which forward reuse does without")
        self.fresh = fresh

    @property
    def fidelity(self) -> float:
        return getattr(self.fresh, "fidelity", 1.0)

    @property
    def staleness(self) -> int:
        return getattr(self.fresh, "staleness", 0)

    @property
    def submit(self) -> Callable[[Candidates | None, Task], None] | None:
        """Where `fresh` works ahead, its own."""
        return getattr(self.fresh, "submit", None)

    @property
    def watch(self) -> Callable[[Candidates, Task], None] | None:
        """Where `fresh` learns while selection is off, its own."""
        return getattr(self.fresh, "watch", None)

    @property
    def score_name(self) -> str:
        return getattr(self.fresh, "score_name", "loss")

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        return self.fresh.score(candidates, task)

    def state_dict(self) -> dict[str, Any]:
        return self.fresh.state_dict() if hasattr(self.fresh, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self.fresh, "load_state_dict"):
            self.fresh.load_state_dict(state)
