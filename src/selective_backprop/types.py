"""The types that the parts of the library exchange: candidates, scores, selections, batches.

# N = candidates, K = selected (an example may be selected more than once by methods that draw with replacement)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from selective_backprop.description import Described
from selective_backprop.inference import unwrap
from selective_backprop.ledger import Column, LedgerRows
from selective_backprop.losses import PerExampleLoss
from selective_backprop.rows import map_tensors

__all__ = [
    "Batch",
    "Candidates",
    "Column",
    "Forward",
    "LedgerRows",
    "Measure",
    "Needs",
    "Policy",
    "Scorer",
    "Selection",
    "Task",
    "Weighting",
]

Forward = Callable[[nn.Module, Any], tuple[Any, Any]]
"""How a batch goes through the model: a function from (model, batch) to (outputs, targets)."""
Weighting = Literal["none", "biased", "unbiased"]
"""Whether a policy gives weights: none (all are 1), or others that make an epoch's gradient biased or unbiased."""
Measure = Callable[[Any, Any], Tensor]
"""A score other than the loss: a function from (outputs, targets) to one number per example."""


@dataclass(frozen=True)
class Task:
    """What is being trained. The losses of a batch are loss(*forward(model, data))."""

    model: nn.Module
    forward: Forward
    loss: PerExampleLoss
    progress: float | None = None
    """Fraction of the run that is over, for scorers that learn alongside; None if its length is not known."""

    def at(self, epochs_done: float, num_epochs: int | None) -> Task:
        """Return the same task at a later point of the run."""
        return replace(self, progress=min(1.0, epochs_done / num_epochs)) if num_epochs else self

    def for_scores(self) -> Task:
        """Return the same task for passes that only score: the model itself, and copies of each batch.

        Models and losses may write to the batch that they get, as `images /= 255` does. The batch is trained on later.
        """

        def forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
            return self.forward(model, map_tensors(batch, Tensor.clone))

        return Task(unwrap(self.model), forward, self.loss, self.progress)


@dataclass(frozen=True)
class Candidates:
    """A batch of examples that the user's loader offers."""

    data: Any
    """The batch as the loader made it, on the device of the model."""
    ids: Tensor | None
    """(N,) int64 on the CPU; None if the loader has no ids."""
    size: int
    """N."""


@dataclass(frozen=True)
class Selection:
    """Which candidates to train on. All tensors are on the CPU."""

    positions: Tensor
    """(K,) int64, rising: positions of the selected candidates in their batch."""
    weights: Tensor
    """(K,) float32: the weight of each selected candidate in the training loss."""
    probabilities: Tensor
    """(N,) float64: the chance that each candidate had to be selected."""

    def keeps_all(self, num_candidates: int) -> bool:
        """Whether every candidate is selected exactly once. Draws with replacement may leave some out.

        >>> Selection(torch.tensor([0, 0]), torch.ones(2), torch.ones(2)).keeps_all(2)
        False
        """
        return self.positions.numel() == num_candidates and bool((self.positions.diff() > 0).all())


@dataclass(frozen=True, eq=False)  # two batches are never equal: it matters which of them a loss belongs to
class Batch:
    """A training batch of B selected examples."""

    data: Any
    """The batch in the form in which the user's loader makes batches."""
    ids: Tensor | None
    """(B,) int64 on the CPU; None if the loader has no ids."""
    weights: Tensor
    """(B,) float32 on the CPU: the weight of each example in the training loss."""
    probabilities: Tensor
    """(B,) float64 on the CPU: the chance that each example had to be selected."""

    def __len__(self) -> int:
        return len(self.weights)

    @cached_property  # asked several times in a training step
    def is_weighted(self) -> bool:
        """Whether a weight differs from 1."""
        return not bool((self.weights == 1).all())


class Policy(Described, ABC):
    """Turns scores into a selection. A policy sees neither the model nor the data.

    Your own policy must override `select`. Everything else has a default.
    """

    selectivity: float | None = None
    """The share of candidates that the user asked for, if any. The loader logs a line if the actual share differs."""
    weighting: Weighting = "none"
    """Whether weights may differ from 1. "unbiased": the expected weight of every
    example in an epoch is the same: 1, or for draws with replacement their share of the candidates."""
    with_replacement: bool = False
    """Whether an example may be selected twice, so that a training batch may hold it twice."""

    def begin_epoch(self, epoch: int, num_epochs: int | None) -> None:
        """Take note that an epoch begins, or goes on after a state was loaded. By default a policy does not care.

        Args:
            epoch: number of the epoch, from 0.
            num_epochs: length of the run; None if not known. A policy that needs it raises a ValueError at None.
        """

    @abstractmethod
    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Select among N > 0 candidates by their (N,) finite scores, on the CPU. Draw from the generator alone.

        A policy that cannot take negative scores calls `losses.require_not_negative`; the loader adds the ids.
        """

    def explanation(self) -> str | None:
        """Say why the last selection kept all candidates, or another share than asked for. It is logged once."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what the policy remembers from one selection to the next; by default nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a scorer needs from the loader and the user's loop."""

    ids: bool = False
    """Whether the loader must know the id of each example."""
    selection_pass: bool = False
    """Whether a model runs to score loaded candidates. If not, candidates without a known score are trained on."""
    training_losses: bool = False
    """Whether the user's loop must compute its loss with `loader.loss`."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Columns that the ledger must have besides those that it always has, by name. `recall` reads them."""


class Scorer(Described):
    """Gives candidates their scores. What is known about examples is in the ledger, not in the scorer.

    Your own scorer overrides `score`, or `recall`, or both and `plans`. Everything else has a default, for a scorer
    that learns nothing and whose scores are losses.
    """

    needs: Needs = Needs()
    """What the scorer needs from the loader and the user's loop."""
    score_name: str = "loss"
    """What errors call a score. It must be "loss" if scores are comparable with training losses."""

    def check_run(self, num_examples: int | None, num_epochs: int | None) -> None:
        """Raise if this scorer does not fit a data set of this size, or a run of this length. None: not known."""

    def plans(self, epoch: int) -> bool:
        """Whether this epoch is planned before candidates are loaded. By default it is, if the scorer has `recall`."""
        return type(self).recall is not Scorer.recall

    def recall(self, ids: Tensor, rows: LedgerRows, epoch: int) -> Tensor:
        """Return (N,) scores of candidates that are not loaded yet; NaN where not known.

        Row i of `rows` is what the ledger knows about ids[i]. Always read the same columns in the same order, whatever
        is in them: ranks that train together fetch columns from each other, all at the same time.
        """
        raise RuntimeError(f"{type(self).__name__} knows no scores of candidates that are not loaded")

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        """Return (N,) scores of loaded candidates, on any device. The model must be left as it was."""
        raise RuntimeError(f"{type(self).__name__} does not score loaded candidates")

    def explanation(self) -> str | None:
        """Say why no candidate has a score, if that is so on purpose. It is shown in the statistics."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what the scorer has learned, such as the weights of a proxy; by default nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
