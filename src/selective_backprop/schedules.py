"""When selection is on: apart from how scores are made and used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar

import torch
from torch import Tensor

from selective_backprop.functional import should_selective_backprop

_logger = logging.getLogger(__name__)

_PAUSE = 10  # times the usual: time that was not the loop's (a checkpoint, a debugger), not counted
_ROUNDING = 1e-9  # 23 epochs and 4 of 10 batches must count as 0.9 of 26 epochs, whatever floats make of it


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A warm-up in epochs, a window as fractions of the run, and plain batches in between.

    >>> Schedule(warmup_epochs=1).is_on(0.9, batch_idx=5), Schedule(warmup_epochs=1).is_on(1.0, batch_idx=0)
    (False, True)
    """

    warmup_epochs: float = 0
    """Train on everything for that long at first."""
    start: float = 0.0
    """Fraction of the run at which selection starts."""
    end: float = 1.0
    """Fraction of the run at which it ends; 0 means never on."""
    interrupt: int = 0
    """Every `interrupt`-th candidate batch of an epoch is plain; 0 means none."""
    observes_losses: ClassVar[bool] = False
    """Whether `observe_losses` makes something of training losses, so that the loop has to give them."""

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
        """Whether the length of the run has to be known."""
        return self.end > 0 and (self.start > 0 or self.end < 1)

    @property
    def never_on(self) -> bool:
        return self.end == 0 or self.interrupt == 1

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether to select from the candidate batch that starts `epochs_done` epochs into the run.

        A run that goes on beyond num_epochs stays as it was at the end of its last one.
        """
        epochs_done += _ROUNDING
        if self.end == 0 or self.interrupt == 1 or epochs_done < self.warmup_epochs:
            return False
        if self.start == 0 and self.end == 1:  # no window
            return not self.interrupt or should_selective_backprop(0.0, batch_idx, 0.0, 1.0, self.interrupt)
        if num_epochs is None:
            raise ValueError("a window of training needs num_epochs=")
        duration = min(epochs_done / num_epochs, 1.0)
        end = self.end if self.end < 1 else float("inf")
        return should_selective_backprop(duration, batch_idx, self.start, end, self.interrupt)

    def expects_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether it will be on for a candidate batch to come, as far as is known; asking has no effect."""
        return self.is_on(epochs_done, batch_idx, num_epochs)

    def on_in_epoch(self, epoch: int, num_batches: int | None, num_epochs: int | None = None) -> bool:
        """Whether it is on for any candidate batch of the epoch."""
        if self.never_on or epoch + 1 <= self.warmup_epochs:
            return False  # without asking about each of what may be billions of batches
        if num_batches is None:
            return epoch >= self.warmup_epochs
        return any(self.is_on(epoch + i / num_batches, i, num_epochs) for i in range(num_batches))

    def observe(self, scores: Tensor) -> None:
        """Scores of candidates that were selected from or looked at; of no interest here."""

    def observe_losses(self, losses: Tensor) -> None:
        """Training losses of candidates that nothing was selected from; of no interest here."""

    def wants_scores(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Whether candidates that are not selected from should be scored all the same, to observe their scores.

        To be asked once for each candidate batch while selection is off.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


NEVER = Schedule(end=0.0)


@dataclass(frozen=True, kw_only=True)
class VariableStart(Schedule):
    """On as long as importance sampling is estimated to reduce the variance by more than it costs.

    The estimate is Kath18's: sampling n examples in proportion to their scores is worth tau times as many drawn
    uniformly, tau = sqrt(n * sum(p ** 2)), as a running mean. While selection is on, tau comes from the scores of each
    pool that is drawn from, and from nothing else: the examples drawn are the hard ones, and their losses would give a
    tau that is too low. While it is off, tau comes from training losses where `loader.loss` gives them, at no cost.
    Where it does not, as with mixup, one candidate batch in `probe_every` is scored.

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
    threshold: float
    """Start when tau is above this."""
    momentum: float = 0.9
    """Weight of the earlier estimate in the running mean."""
    probe_every: int = 10
    """While selection is off, score a candidate batch when the ones before it, this many, gave no training losses."""
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
        """The estimate; 0 before there is one."""
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
        if self.tau <= self.threshold:  # while selection is on, the pools tell
            self.observe(losses)

    def wants_scores(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        if self.tau > self.threshold or not super().is_on(epochs_done, batch_idx, num_epochs):
            return False  # off for another reason, such as a warm-up
        self._state["unobserved"] += 1
        return bool(self._state["unobserved"] > self.probe_every)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.keys() != self._state.keys():
            raise ValueError(f"the saved schedule has {sorted(state)}, a VariableStart has {sorted(self._state)}")
        self._state.update(state)


@dataclass(frozen=True, kw_only=True)
class Guard(Schedule):
    """A schedule that also switches selection off while a candidate batch takes longer with it than without.

    The time of everything between one candidate batch and the next is compared: loading, scoring, training. Without
    selection first, then with it, then as was faster; the other is tried again from time to time. A line is logged
    at every switch. As the clock decides, two runs with the same seed may differ.

    >>> Guard(warmup_epochs=1).is_on(1.0, batch_idx=0)      # the first batches are without, to know their time
    False
    """

    window: int = 50
    """Candidate batches over which time is measured."""
    patience: int = 1000
    """Candidate batches after which what was slower is tried again."""
    margin: float = 0.05
    """By how much one must be faster than the other for a switch."""
    clock: Callable[[], float] = time.perf_counter
    _state: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or self.patience < self.window:
            raise ValueError(
                f"window must be at least 1 and patience at least that, got {self.window}, {self.patience}"
            )
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must be in [0, 1), got {self.margin}")
        # on: whether selection is; trial: whether it is so to find out; since: batches since then.
        self._state.update(on=False, trial=True, since=0, intervals=[], seconds={}, last=None, settled_on=True)

    def is_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        """Asked once for every candidate batch, which is how it knows the time."""
        if not super().is_on(epochs_done, batch_idx, num_epochs):
            self._state["last"] = None  # what is trained on plainly anyway says nothing about the rest
            return False
        now, state = self.clock(), self._state
        if state["last"] is not None and batch_idx > 0:  # between epochs the user may have tested the model
            state["intervals"] = [*state["intervals"], now - state["last"]][-self.window :]
        if state["since"] >= self.window and state["since"] % self.window == 0 and state["intervals"]:
            self._conclude()
        state["since"] += 1
        state["last"] = now
        return bool(state["on"])

    def expects_on(self, epochs_done: float, batch_idx: int, num_epochs: int | None = None) -> bool:
        return bool(self._state["on"]) and super().is_on(epochs_done, batch_idx, num_epochs)

    def _conclude(self) -> None:
        """A window is over."""
        state = self._state
        state["seconds"][state["on"]] = _mean_without_pauses(state["intervals"])
        if state["trial"] and len(state["seconds"]) == 1:
            self._switch(on=True, trial=True)  # the first time with selection
        elif state["trial"]:
            self._settle()
        elif state["since"] >= self.patience:
            self._switch(on=not state["on"], trial=True)

    def _settle(self) -> None:
        """Both have been measured: go on as was faster."""
        with_selection, without = (self._state["seconds"][on] for on in (True, False))
        was_on = self._state["settled_on"]
        on = with_selection <= without * (1 + self.margin if was_on else 1 - self.margin)
        if on != was_on:
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
