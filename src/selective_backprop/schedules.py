"""Schedules: they decide when selection is on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from selective_backprop.functional import should_selective_backprop
from selective_backprop.options import require_numbers

_MOMENTUM = 0.9  # weight of the earlier estimate of tau in its running mean
_PROBE_EVERY = 10  # while selection is off, a candidate batch is scored after so many without training losses
_ROUNDING = 1e-9  # against rounding errors: 23 epochs and 4 of 10 batches must count as 0.9 of 26 epochs


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Switches selection on after a warm-up, within a window of the run, and off for some batches in between.

    >>> Schedule(warmup_epochs=1).is_on(0.9, batch_idx=5), Schedule(warmup_epochs=1).is_on(1.0, batch_idx=0)
    (False, True)
    """

    warmup_epochs: float = 0
    """Number of epochs at the start in which everything is trained on."""
    start: float = 0.0
    """Fraction of the run at which selection starts."""
    end: float = 1.0
    """Fraction of the run at which selection ends; 0 means that it is never on."""
    interrupt: int = 0
    """Every `interrupt`-th candidate batch of an epoch is trained on as a whole; 0 for none."""
    observes_losses: ClassVar[bool] = False
    """Whether `observe_losses` uses training losses, so that the user's loop must report them."""

    def __post_init__(self) -> None:
        require_numbers(warmup_epochs=self.warmup_epochs, start=self.start, end=self.end)
        if not self.warmup_epochs >= 0:  # also if it is NaN
            raise ValueError(f"warmup_epochs must be >= 0, got {self.warmup_epochs}")
        if not 0 <= self.start <= 1 or not 0 <= self.end <= 1:
            raise ValueError(f"start and end must be fractions of the run in [0, 1], got {self.start} and {self.end}")
        if self.start >= self.end and self.end > 0:
            raise ValueError(f"start must be before end, got {self.start} and {self.end}")
        if not isinstance(self.interrupt, int) or self.interrupt < 0:
            raise ValueError(f"interrupt must be a whole number >= 0, got {self.interrupt!r}")

    @property
    def needs_num_epochs(self) -> bool:
        """Whether the schedule must know the length of the run."""
        return self.end > 0 and (self.start > 0 or self.end < 1)

    @property
    def never_on(self) -> bool:
        return self.end == 0 or self.interrupt == 1

    @property
    def known_ahead(self) -> bool:
        """Whether `is_on` can be asked about a whole epoch before it begins. Not if batches change the schedule."""
        own = type(self)
        return own.advance is Schedule.advance and own.observe is Schedule.observe

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether to select from the candidate batch that begins `epochs_done` epochs into the run.

        Asking changes nothing. If a run goes on after num_epochs, the answer stays the same.
        """
        epochs_done += _ROUNDING
        if self.never_on or epochs_done < self.warmup_epochs:
            return False
        if num_epochs is None and self.needs_num_epochs:
            raise ValueError(
                "this schedule selects in a window of the run: pass num_epochs=, the length of the run in epochs"
            )
        duration = 0.0 if num_epochs is None else min(epochs_done / num_epochs, 1.0)
        end = self.end if self.end < 1 else float("inf")
        return should_selective_backprop(duration, batch_idx, self.start, end, self.interrupt)

    def advance(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> None:
        """Go on to the next candidate batch. Called once per batch, before `is_on` is asked about it.

        This schedule has nothing to do here; subclasses may count batches.
        """

    def on_in_epoch(self, epoch: int, num_batches: int | None, num_epochs: int | None = None) -> bool:
        """Whether selection is on for any candidate batch of the epoch."""
        if self.never_on or epoch + 1 <= self.warmup_epochs:
            return False  # a shortcut: there may be billions of batches to ask about below
        if num_batches is None:
            return epoch >= self.warmup_epochs
        return any(self.is_on(epoch + i / num_batches, i, num_epochs) for i in range(num_batches))

    def on_in_whole_epoch(self, epoch: int, num_batches: int, num_epochs: int | None = None) -> bool:
        """Whether selection is on for every candidate batch of the epoch."""
        batches = range(num_batches)
        if type(self).is_on is Schedule.is_on and not self.interrupt:
            batches = batches[:: max(1, num_batches - 1)]  # a window that has the first and the last batch has all
        return all(self.is_on(epoch + i / num_batches, i, num_epochs) for i in batches)

    def observe(self, scores: Tensor) -> None:
        """Take note of scores of candidates. This schedule ignores them; subclasses may use them."""

    def observe_losses(self, losses: Tensor) -> None:
        """Take note of training losses while selection is off. This schedule ignores them; subclasses may use them."""

    def wants_scores(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether to score this candidate batch although selection is off, so that `observe` gets its scores."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


NEVER = Schedule(end=0.0)
"""Selection is never on."""


@dataclass(frozen=True, kw_only=True)
class VariableStart(Schedule):
    """Switches selection on while importance sampling is estimated to reduce the variance by more than it costs.

    The estimate is Kath18's: n examples sampled in proportion to their scores are worth tau * n examples drawn
    uniformly, where tau = sqrt(n * sum(p ** 2)), as a running mean.

    While selection is on, tau comes only from the scores of the candidates. Training losses are those of selected, hard
    examples then, and would give a tau that is too low. While selection is off, tau comes from training losses at no
    cost, if `loader.loss` gives them. If it does not, as with mixup, one candidate batch in ten is scored.

    >>> schedule = VariableStart(threshold=1.2)
    >>> schedule.observe(torch.tensor([1.0, 1.0, 1.0]))
    >>> schedule.is_on(0, 0)
    False
    >>> schedule.observe(torch.tensor([0.0] * 9 + [1.0]))
    >>> schedule.is_on(0, 0), schedule.tau
    (True, 1.21...)

    Katharopoulos and Fleuret 2018, https://arxiv.org/abs/1803.00942, equation 26 and algorithm 1.
    """

    observes_losses: ClassVar[bool] = True
    threshold: float
    """Selection is on while tau is above this."""
    _state: dict[str, Any] = field(
        default_factory=lambda: {"tau": 0.0, "unobserved": 0}, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_numbers(threshold=self.threshold)
        if not self.threshold >= 0:  # NaN is not, either
            raise ValueError(f"threshold must be a number >= 0, got {self.threshold}")

    @property
    def tau(self) -> float:
        """The current estimate of tau; 0 before the first one."""
        return float(self._state["tau"])

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        return self.tau > self.threshold and super().is_on(epochs_done, batch_idx, num_epochs)

    def observe(self, scores: Tensor) -> None:
        self._state["unobserved"] = 0
        scores = scores.to(torch.float64)
        total = float(scores.sum())
        if total > 0:
            tau = float((len(scores) * (scores / total).square().sum()).sqrt())
            self._state["tau"] = _MOMENTUM * self.tau + (1 - _MOMENTUM) * tau if self.tau else tau

    def observe_losses(self, losses: Tensor) -> None:
        if self.tau <= self.threshold:  # while selection is on, tau comes from the scores
            self.observe(losses)

    def advance(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> None:
        if self._waits_for_tau(epochs_done, batch_idx, num_epochs):
            self._state["unobserved"] += 1

    def wants_scores(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        is_due = bool(self._state["unobserved"] > _PROBE_EVERY)
        return is_due and self._waits_for_tau(epochs_done, batch_idx, num_epochs)

    def _waits_for_tau(self, epochs_done: float, batch_idx: int, num_epochs: int | None) -> bool:
        """Whether selection is off only because tau is too low, and not because of a warm-up or the like."""
        return self.tau <= self.threshold and super().is_on(epochs_done, batch_idx, num_epochs)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.update(state)
