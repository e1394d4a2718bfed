"""The few types that the parts speak to each other with.

# N = candidates, K = selected (an example may be selected more than once by methods that draw with replacement)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from selective_backprop.description import Described
from selective_backprop.ledger import LedgerRows
from selective_backprop.losses import PerExampleLoss

__all__ = [
    "Batch",
    "Candidates",
    "Forward",
    "LedgerRows",
    "Measure",
    "Needs",
    "Policy",
    "Scorer",
    "Selection",
    "Task",
]

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
Measure = Callable[[Any, Any], Tensor]
"""Another score than the loss, from (outputs, targets) to one number per example."""


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


class Policy(Described, ABC):
    """Scores in, selection out. Sees neither the model nor the data.

    A policy of your own overrides `select`, and of the rest only what differs from the defaults here.
    """

    gives_weights: bool = False
    """Whether a weight may differ from 1."""
    unbiased: bool = False
    """Whether the weights make the expected weight of every example in an epoch 1."""
    with_replacement: bool = False
    """Whether an example may be selected twice, so that a training batch may hold it twice."""
    takes_negative_scores: bool = True
    """If not, the loader refuses negative scores with their ids, from the first batch on."""
    selectivity: float | None = None
    """Share of the candidates that was asked for; None if no share was. The loader logs a line if it gets another."""
    fixed_size: bool = False
    """Whether it can be told how many to keep, as `GroupedPolicy` does: see `FixedSizePolicy`."""
    paper: bool = False
    """Whether it follows the rule of a paper to the letter, also where that keeps another share than asked for."""
    keeps_groups_apart: bool = False
    """Whether it has `select_in_groups`, as `GroupedPolicy` has."""

    @abstractmethod
    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Choose among (N,) finite scores on the CPU; all randomness comes from the generator."""

    def select_in_groups(self, scores: Tensor, generator: torch.Generator, groups: Tensor) -> Selection:
        """Choose within each group; groups holds the (N,) numbers of the candidates' groups, such as their classes."""
        raise TypeError(f"{type(self).__name__} does not keep groups apart: wrap it in a GroupedPolicy")

    def state_dict(self) -> dict[str, Any]:
        """What the policy remembers from one selection to the next; by default nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""


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


class Scorer(Described):
    """Where scores come from. Keeps nothing of its own about examples: that is in the ledger.

    A scorer of your own overrides `score`, or `remembers` and `recall`, or all three. Every other hook has a default:
    a scorer that learns nothing, does not work ahead, and whose scores are exact losses.
    """

    needs: Needs = Needs()
    """What it needs from the loader and the user's loop."""
    works_ahead: bool = False
    """Whether it begins to score before the candidates' turn, by `submit`."""
    watches: bool = False
    """Whether it learns from candidates while selection is off, by `watch`."""
    must_train: bool = False
    """Whether candidates without a known score have to be trained on in that very epoch."""
    is_final: bool = False
    """Whether nothing may be added to what it names, however few examples that are."""
    fidelity: float = 1.0
    """Rank correlation of the scores with the exact ones on the last sample; NaN before there is one."""
    staleness: int = 0
    """Training batches given out between the weights that made the last scores and the use of these."""
    score_name: str = "loss"
    """What errors call a score; "loss" if it is comparable with a training loss."""
    fresh: Scorer | None = None
    """The scorer that scores loaded candidates on this one's behalf, if there is one."""

    def remembers(self, epoch: int) -> bool:
        """Whether scores can be known in this epoch before candidates are loaded."""
        return False

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        """(N,) scores of candidates not yet loaded; NaN where not known.

        Row i of `rows` is what the ledger knows of ids[i]. Which columns are read, and in which order, must not depend
        on what is in them: ranks that train together fetch them from each other.
        """
        raise RuntimeError(f"{type(self).__name__} knows no scores of candidates that are not loaded")

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        """(N,) scores of loaded candidates, on any device. Leaves no trace on the model."""
        raise RuntimeError(f"{type(self).__name__} does not score loaded candidates")

    def score_copy(self, candidates: Candidates, task: Task) -> Tensor:
        """The same scores by a model that is the caller's own copy, in eval mode; in any thread.

        Nothing has to be restored. Global random states must not be touched, as the main thread draws from them.
        """
        raise TypeError(f"{type(self).__name__} cannot score in the background: it has no score_copy")

    def measuring(self, measure: Measure) -> Self:
        """The same scorer with another score than the loss."""
        raise TypeError(f"this method's score is not the loss: {type(self).__name__} cannot measure it")

    def submit(self, candidates: Candidates | None, task: Task) -> None:
        """Begin with the candidates that are scored next; None: with none, after all. Asked if it works_ahead."""

    def watch(self, candidates: Candidates, task: Task) -> None:
        """Learn from candidates that are not selected from, as in a warm-up. Asked if it watches."""

    def state_dict(self) -> dict[str, Any]:
        """What the scorer learns while it works, such as the weights of a proxy; by default nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
