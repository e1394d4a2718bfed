"""Selection only while it saves time, as the clock tells."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from selective_backprop.schedule import Schedule

_logger = logging.getLogger(__name__)
_PAUSE = 10  # times the usual: time that was not the loop's (a checkpoint, a debugger), not counted


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
