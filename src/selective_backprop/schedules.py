"""Schedules: they decide when selection is on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar

import torch
from torch import Tensor

from selective_backprop.functional import count_for_loss_share, should_selective_backprop

_logger = logging.getLogger(__name__)

_PAUSE = 10  # intervals longer than this many medians are pauses (a checkpoint, a debugger) and do not count
_CARRIED = 0.95  # share of the loss by which a guard tells how evenly losses are spread
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
    known_ahead: ClassVar[bool] = True
    """Whether `is_on` can be asked about a whole epoch before it begins. Not if it depends on what happens in it."""

    def __post_init__(self) -> None:
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

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether to select from the candidate batch that begins `epochs_done` epochs into the run.

        Asking changes nothing. If a run goes on after num_epochs, the answer stays the same.
        """
        epochs_done += _ROUNDING
        if self.end == 0 or self.interrupt == 1 or epochs_done < self.warmup_epochs:
            return False
        if self.start == 0 and self.end == 1:  # no window
            return not self.interrupt or should_selective_backprop(0.0, batch_idx, 0.0, 1.0, self.interrupt)
        if num_epochs is None:
            raise ValueError(
                "this schedule selects in a window of the run: pass num_epochs=, the length of the run in epochs"
            )
        duration = min(epochs_done / num_epochs, 1.0)
        end = self.end if self.end < 1 else float("inf")
        return should_selective_backprop(duration, batch_idx, self.start, end, self.interrupt)

    def advance(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> None:
        """Go on to the next candidate batch. Called once per batch, before `is_on` is asked about it.

        This schedule has nothing to do here; subclasses may count batches or measure time.
        """

    def on_in_epoch(self, epoch: int, num_batches: int | None, num_epochs: int | None = None) -> bool:
        """Whether selection is on for any candidate batch of the epoch."""
        if self.never_on or epoch + 1 <= self.warmup_epochs:
            return False  # a shortcut: there may be billions of batches to ask about below
        if num_batches is None:
            return epoch >= self.warmup_epochs
        return any(self.is_on(epoch + i / num_batches, i, num_epochs) for i in range(num_batches))

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
    cost, if `loader.loss` gives them. If it does not, as with mixup, one candidate batch in `probe_every` is scored.

    >>> schedule = VariableStart(threshold=2.0, momentum=0.0)
    >>> schedule.observe(torch.tensor([1.0, 1.0, 1.0]))
    >>> schedule.is_on(0, 0)
    False
    >>> schedule.observe(torch.tensor([0.0] * 9 + [1.0]))
    >>> schedule.is_on(0, 0), schedule.tau
    (True, 3.16...)

    Katharopoulos and Fleuret 2018, https://arxiv.org/abs/1803.00942, equation 26 and algorithm 1.
    """

    observes_losses: ClassVar[bool] = True
    known_ahead: ClassVar[bool] = False
    threshold: float
    """Selection is on while tau is above this."""
    momentum: float = 0.9
    """Weight of the earlier estimate in the running mean."""
    probe_every: int = 10
    """While selection is off, score a candidate batch after this many batches without training losses."""
    _state: dict[str, Any] = field(
        default_factory=lambda: {"tau": 0.0, "unobserved": 0}, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold >= 0:  # NaN is not, either
            raise ValueError(f"threshold must be a number >= 0, got {self.threshold}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not isinstance(self.probe_every, int) or self.probe_every < 1:
            raise ValueError(f"probe_every must be a whole number of candidate batches >= 1, got {self.probe_every!r}")

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
            self._state["tau"] = self.momentum * self.tau + (1 - self.momentum) * tau if self.tau else tau

    def observe_losses(self, losses: Tensor) -> None:
        if self.tau <= self.threshold:  # while selection is on, tau comes from the scores
            self.observe(losses)

    def advance(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> None:
        if self._waits_for_tau(epochs_done, batch_idx, num_epochs):
            self._state["unobserved"] += 1

    def wants_scores(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        is_due = bool(self._state["unobserved"] > self.probe_every)
        return is_due and self._waits_for_tau(epochs_done, batch_idx, num_epochs)

    def _waits_for_tau(self, epochs_done: float, batch_idx: int, num_epochs: int | None) -> bool:
        """Whether selection is off only because tau is too low, and not because of a warm-up or the like."""
        return self.tau <= self.threshold and super().is_on(epochs_done, batch_idx, num_epochs)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self._state.keys():
            raise ValueError(f"the saved schedule has {sorted(state)}, but a VariableStart has {sorted(self._state)}")
        self._state.update(state)


@dataclass(frozen=True, kw_only=True)
class Guard(Schedule):
    """A schedule that also switches selection off while it does not pay: it takes longer, or losses are spread evenly.

    It measures the time from one candidate batch to the next: loading, scoring and training. It measures first without
    selection, then with it, and goes on with the faster way. The slower way is tried again from time to time. A line is
    logged at every switch. Because the clock decides, two runs with the same seed may differ.

    A faster batch is no gain if the choice of examples costs accuracy. On our leaderboard that is so where losses are
    spread evenly. So selection stays off, too, while it takes more than `most_spread` of the candidates to carry 95% of
    their loss.

    >>> Guard(warmup_epochs=1).is_on(1.0, batch_idx=0)      # the first batches measure the time without selection
    False
    """

    known_ahead: ClassVar[bool] = False
    window: int = 50
    """Number of candidate batches over which time is measured."""
    patience: int = 1000
    """Number of candidate batches after which the slower way is tried again."""
    margin: float = 0.05
    """How much faster, as a fraction, the other way must be for a switch."""
    most_spread: float = 0.7
    """Selection is off while a larger share of the candidates than this carries 95% of the loss; 1 for no such rule."""
    clock: Callable[[], float] = time.perf_counter
    """Returns the time in seconds."""
    _state: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or self.patience < self.window:
            raise ValueError(
                f"window must be at least 1 and patience at least window, got {self.window} and {self.patience}"
            )
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must be in [0, 1), got {self.margin}")
        if not 0 < self.most_spread <= 1:
            raise ValueError(f"most_spread must be a share of the candidates in (0, 1], got {self.most_spread}")
        # on: whether selection is on; trial: whether this is only to measure; since: batches since the last switch.
        self._state.update(
            on=False, trial=True, since=0, intervals=[], seconds={}, last=None, settled_on=True, spreads=[]
        )

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        return bool(self._state["on"]) and super().is_on(epochs_done, batch_idx, num_epochs)

    def advance(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> None:
        """Measure the time since the batch before, and decide at the end of each window whether selection is on."""
        state = self._state
        if not super().is_on(epochs_done, batch_idx, num_epochs):
            state["last"] = None  # batches outside the window or in the warm-up are not measured
            return
        now = self.clock()
        if state["last"] is not None and batch_idx > 0:  # between epochs the user may have tested the model
            state["intervals"] = [*state["intervals"], now - state["last"]][-self.window :]
        if state["since"] >= self.window and state["since"] % self.window == 0 and state["intervals"]:
            self._conclude()
        state["since"] += 1
        state["last"] = now

    def observe(self, scores: Tensor) -> None:
        """Note how evenly the losses of a candidate batch are spread. While selection is off, there are none to see."""
        spread = count_for_loss_share(scores, _CARRIED) / max(1, len(scores))
        self._state["spreads"] = [*self._state["spreads"], spread][-self.window :]

    def _conclude(self) -> None:
        """Decide what to do next, at the end of a window."""
        state = self._state
        state["seconds"][state["on"]] = _mean_without_pauses(state["intervals"])
        if state["trial"] and len(state["seconds"]) == 1:
            self._switch(on=True, trial=True)  # the first window with selection
        elif state["trial"]:
            self._settle()
        elif state["since"] >= self.patience:
            self._switch(on=not state["on"], trial=True)
        elif state["on"] and fmean(state["spreads"] or [0.0]) > self.most_spread:
            self._settle()

    def _settle(self) -> None:
        """Go on with the faster way, now that both have been measured."""
        with_selection, without = (self._state["seconds"][on] for on in (True, False))
        was_on = self._state["settled_on"]
        spread = fmean(self._state["spreads"] or [0.0])
        on = with_selection <= without * (1 + self.margin if was_on else 1 - self.margin) and spread <= self.most_spread
        if on != was_on and spread > self.most_spread:
            _logger.info(
                "selection is switched off: losses are spread evenly. %.0f%% of the candidates carry 95%% of them, and "
                "above %.0f%% a choice by loss tends to cost more accuracy than it saves compute",
                100 * spread,
                100 * self.most_spread,
            )
        elif on != was_on:
            _logger.info(
                "selection is switched %s: a candidate batch takes %.3g ms with it and %.3g ms without",
                "on" if on else "off",
                1e3 * with_selection,
                1e3 * without,
            )
        self._state["settled_on"] = on
        self._switch(on=on, trial=False)

    def _switch(self, *, on: bool, trial: bool) -> None:
        self._state.update(on=on, trial=trial, since=0, intervals=[])

    def state_dict(self) -> dict[str, Any]:
        seconds = {str(on): value for on, value in self._state["seconds"].items()}
        return {**self._state, "seconds": seconds, "last": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        seconds = {key == "True": value for key, value in state["seconds"].items()}
        self._state.update({**state, "seconds": seconds})


def _mean_without_pauses(intervals: list[float]) -> float:
    limit = _PAUSE * median(intervals)
    return fmean(seconds for seconds in intervals if seconds <= limit)
