"""The few types that the parts speak to each other with.

# N = candidates, K = selected (an example may be selected more than once by methods that draw with replacement)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from selective_backprop.ledger import Ledger
from selective_backprop.losses import PerExampleLoss
from selective_backprop.schedule import Schedule

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Task:
    """What is being trained, as a scorer needs it: loss(*forward(model, data))."""

    model: nn.Module
    forward: Forward
    loss: PerExampleLoss


@dataclass(frozen=True)
class Candidates:
    """Examples that the user's loader offers."""

    data: Any
    """The batch as the loader made it, on the device of the model."""
    ids: Tensor | None
    """(N,) int64 on the CPU; None where the loader has no ids."""
    size: int
    """N."""


@dataclass(frozen=True)
class Selection:
    """Which candidates to train on, all on the CPU."""

    positions: Tensor
    """(K,) int64, rising: which candidates."""
    weights: Tensor
    """(K,) float32: the weight of each in the training loss."""
    probabilities: Tensor
    """(N,) float64: the chance that each candidate had."""


@dataclass(frozen=True)
class Batch:
    """Selected examples, ready to train on."""

    data: Any
    ids: Tensor | None
    """(B,) int64 on the CPU."""
    weights: Tensor
    """(B,) float32 on the CPU."""
    probabilities: Tensor
    """(B,) float64 on the CPU: the chance with which each was selected."""

    def __len__(self) -> int:
        return len(self.weights)


@runtime_checkable
class Policy(Protocol):
    """Scores in, selection out. Sees neither the model nor the data. Keeps its state in a state_dict."""

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Choose among (N,) finite scores on the CPU; all randomness comes from the generator."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Scorer(Protocol):
    """Where scores come from."""

    needs_ids: bool
    """Whether it works only with a data set whose examples have ids."""
    uses_model: bool
    """Whether scoring a loaded candidate is a selection pass, rather than free."""

    def remembers(self, epoch: int) -> bool:
        """Whether scores can be known in this epoch before candidates are loaded."""
        ...

    def recall(self, ids: Tensor, ledger: Ledger, epoch: int) -> Tensor:
        """(N,) scores of candidates not yet loaded; NaN where one has to be loaded and scored."""
        ...

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        """(N,) scores of loaded candidates, on any device. Leaves no trace on the model."""
        ...


@dataclass(frozen=True)
class Method:
    """A named combination of parts. A recipe: every loader works on a copy of the policy.

    >>> from selective_backprop.policies import UniformPolicy
    >>> from selective_backprop.scorers import ConstantScorer
    >>> Method("mine", scorer=ConstantScorer(), policy=UniformPolicy(selectivity=0.5)).name
    'mine'
    """

    name: str
    scorer: Scorer
    policy: Policy
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if not isinstance(self.scorer, Scorer):
            raise TypeError(f"scorer must have needs_ids, uses_model, remembers, recall and score, got {self.scorer!r}")
        if not isinstance(self.policy, Policy):
            raise TypeError(f"policy must have select, state_dict and load_state_dict, got {self.policy!r}")
