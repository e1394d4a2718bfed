"""What scorers that get scores of loaded candidates from another scorer have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from selective_backprop.description import arguments
from selective_backprop.types import Candidates, Scorer, Task


class Wrapping(Scorer):
    """A scorer that lets another one, `fresh`, score loaded candidates. Fidelity and state are those of `fresh`."""

    def __init__(self, fresh: Scorer) -> None:
        self.fresh = fresh
        self.works_ahead = fresh.works_ahead
        self.score_name = fresh.score_name

    @property
    def fidelity(self) -> float:  # type: ignore[override]
        return self.fresh.fidelity

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        self.fresh.check_run(num_examples, num_epochs)

    def submit(self, candidates: Candidates | None, task: Task) -> None:
        self.fresh.submit(candidates, task)

    def watch(self, candidates: Candidates, task: Task) -> None:
        self.fresh.watch(candidates, task)

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        return self.fresh.score(candidates, task)

    def state_dict(self) -> dict[str, Any]:
        return self.fresh.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fresh.load_state_dict(state)

    def options_in_method(self) -> list[str]:
        """List the scorer's own options, and those of `fresh`."""
        own = [argument for argument in arguments(self) if not argument.startswith("fresh=")]
        return own + self.fresh.options_in_method()
