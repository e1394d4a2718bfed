"""The few types that the parts speak to each other with.

# N = candidates, K = selected (an example may be selected more than once by methods that draw with replacement)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from selective_backprop.ledger import LedgerRows
from selective_backprop.losses import PerExampleLoss

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Task:
    """What is being trained, as a scorer needs it: loss(*forward(model, data))."""

    model: nn.Module
    forward: Forward
    loss: PerExampleLoss
    step: int = 0
    """Training batches given out so far."""


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

    def keeps_all(self, num_candidates: int) -> bool:
        """Whether every candidate is selected, once: draws with replacement may be as many and leave some out.

        >>> Selection(torch.tensor([0, 0]), torch.ones(2), torch.ones(2)).keeps_all(2)
        False
        """
        return self.positions.numel() == num_candidates and bool((self.positions.diff() > 0).all())


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
    """Scores in, selection out. Sees neither the model nor the data. Keeps its state in a state_dict.

    Two attributes are optional, and False where there are none. `with_replacement`: it may select an example twice, so
    that a batch may hold it twice. `unbiased`: its weights make the expected weight of every example in an epoch 1.
    """

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Choose among (N,) finite scores on the CPU; all randomness comes from the generator."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a scorer needs from the loader and the user's loop."""

    ids: bool = False
    """Examples are known by id."""
    selection_pass: bool = False
    """Scoring a loaded candidate runs a model. Without it, a candidate whose score is not known is trained on."""
    training_losses: bool = False
    """The user's loop computes its loss by `loader.loss`."""
    training_pass: bool = False
    """Scores come out of the training pass: whole candidate batches are given out, and `loader.loss` selects."""
    past_scores: int = 1
    """How many scores of each example the ledger has to remember."""
    num_examples: int | None = None
    """The data set has just so many."""
    max_epochs: int | None = None
    """The run is at most so long."""


@runtime_checkable
class Scorer(Protocol):
    """Where scores come from. Keeps nothing of its own about examples: that is in the ledger.

    A scorer that learns while it works also has a state_dict and a load_state_dict, and one whose scores are not
    exact has a `fidelity`, their rank correlation with exact ones. One that can learn from candidates while selection
    is off has `watch(candidates, task)`. One that works ahead has a
    `submit(candidates, task)`, called with the candidates that are scored next, or with None for none after all; and
    a `staleness`, how many training batches were given out since the weights that made the last scores. One whose
    candidates without a known score have to be trained on in that very epoch says so by `must_train`. One whose choice
    is not to be added to, however few examples it names, has `is_final`.
    """

    needs: Needs

    def remembers(self, epoch: int) -> bool:
        """Whether scores can be known in this epoch before candidates are loaded."""
        ...

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        """(N,) scores of candidates not yet loaded; NaN where not known.

        Row i of `rows` is what the ledger knows of ids[i]. Which columns are read, and in which order, must not depend
        on what is in them: ranks that train together fetch them from each other.
        """
        ...

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        """(N,) scores of loaded candidates, on any device. Leaves no trace on the model."""
        ...
