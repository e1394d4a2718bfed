"""Statistics of a run: counts of the examples of all ranks together, and seconds by phase."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from selective_backprop.method import Method
from selective_backprop.types import Policy

OnStats = Callable[[dict[str, float]], None]
"""Called with a flat dict of numbers: what happened since the last call."""

_LOSSES = ("trained", "num_trained", "candidates", "num_candidates")
PHASES = ("loading", "scoring", "selecting", "training")
_FAR = 0.1  # tolerated deviation, as a fraction of the selectivity asked for
_BEYOND_CHANCE = 4  # tolerated deviation, in standard deviations of independent draws
_logger = logging.getLogger(__name__)


def _total() -> Any:
    """Make a field that counts examples, and that `on_stats` reports."""
    return field(default=0, metadata={"total": True})


@dataclass
class Stats:
    """Counts of examples and seconds by phase, since the loader was made or since the run that it resumed began.

    With several ranks the counts are those of all ranks, and the same on each of them. Seconds are this process's own,
    measured on the CPU. With a GPU, the end of a training step may count as scoring, because scoring waits for the GPU
    to finish that step.
    """

    offered: int = _total()
    """Number of candidates offered, skipped ones included."""
    scored: int = _total()
    """Number of candidates scored by a selection pass."""
    trained: int = _total()
    """Number of examples in the training batches given out."""
    skipped_before_loading: int = _total()
    """Number of candidates that were not loaded: skipped by a known score, or left out by drop_last."""
    dropped: int = _total()
    """Number of selected examples that filled no batch at the end of an epoch, and were dropped for drop_last."""
    queued: int = 0
    """Number of selected examples that wait for their batch to fill."""
    batches: int = 0
    """Number of training batches given out on each rank."""
    loss_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LOSSES, 0.0))
    """Sums and numbers of losses, from which `mean_trained_loss` and `mean_candidate_loss` are computed."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase."""
    note: str = ""
    """Why the last epoch was trained on as a whole, if a method that skips examples chose so; else empty."""

    def __post_init__(self) -> None:
        self._phase, self._since = "", 0.0

    @property
    def selectivity(self) -> float:
        """Fraction of the offered candidates that was selected so far."""
        return quotient(self.trained + self.queued, self.offered)

    @property
    def mean_trained_loss(self) -> float:
        """Mean loss of the examples trained on, at the time of training.

        Do not compare it with the training loss of plain training: methods that select hard examples make it higher.
        NaN before `loader.loss` is called, or if the loss function does not tell the loss of each example.
        """
        return quotient(self.loss_sums["trained"], self.loss_sums["num_trained"])

    @property
    def mean_candidate_loss(self) -> float:
        """Mean loss of all candidates that had a selection pass. It can be compared with plain training and test loss.

        NaN if there was no selection pass, or if the method scores by something else than the model's loss.
        """
        return quotient(self.loss_sums["candidates"], self.loss_sums["num_candidates"])

    def count_losses(self, total: float, count: float, of: str) -> None:
        """Add losses, given as their sum and number. of: "trained" examples, or "candidates" of a selection pass."""
        self.loss_sums[of] += total
        self.loss_sums[f"num_{of}"] += count

    def copy(self) -> Stats:
        """Copy the current statistics."""
        return replace(self, seconds=dict(self.seconds), loss_sums=dict(self.loss_sums))

    def since(self, then: Stats) -> dict[str, float]:
        """Return what happened since `then`, a copy made earlier, such as at the beginning of an epoch. For logging.

        >>> then = Stats(offered=100, trained=100)
        >>> now = Stats(offered=200, trained=120, queued=5)
        >>> {name: value for name, value in now.since(then).items() if value}
        {'selectivity': 0.25, 'trained': 20.0}
        """
        selected = self.trained + self.queued - then.trained - then.queued
        values = {
            "selectivity": selected / max(1, self.offered - then.offered),
            "trained": float(self.trained - then.trained),
        }
        return values | {f"seconds_{phase}": self.seconds[phase] - then.seconds[phase] for phase in PHASES}

    def switch(self, phase: str) -> None:
        """Count time for this phase from now on; "" for none."""
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def state_dict(self) -> dict[str, Any]:
        return {f.name: copy.copy(getattr(self, f.name)) for f in fields(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in Stats(**state).state_dict().items():
            setattr(self, name, value)

    def __str__(self) -> str:
        others = {  # named only where there are any: most methods have two of them
            "scored": self.scored,
            "skipped before loading": self.skipped_before_loading,
            "dropped": self.dropped,
            "queued": self.queued,
        }
        counts = "".join(f", {name} {count:,}" for name, count in others.items() if count)
        seconds = ", ".join(f"{phase} {spent:.1f}" for phase, spent in self.seconds.items() if spent)
        return (
            f"offered {self.offered:,}, trained {self.trained:,} in {self.batches:,} batches{counts}; "
            f"selectivity {self.selectivity:.3f}; seconds: {seconds or 0}" + (self.note and f"\n{self.note}")
        )


COUNTS = tuple(found.name for found in fields(Stats) if found.metadata.get("total"))
"""The statistics that count examples."""


def quotient(total: float, count: float) -> float:
    """Divide, or return NaN if there is nothing to divide by."""
    return total / count if count else float("nan")


class Every:
    """Lets `on_stats` be called after every n training batches too, and not only after every epoch.

    Args:
        every: n.
        on_stats: the function of a flat dict.

    >>> Every(100, print).every
    100
    """

    def __init__(self, every: int, on_stats: OnStats) -> None:
        self.every, self._on_stats = every, on_stats

    def __call__(self, values: dict[str, float]) -> None:
        self._on_stats(values)


class Reports:
    """Tells the user's `on_stats` what happened since the last time.

    Args:
        on_stats: the user's function; None tells nobody. If it has an attribute `every`, it is also called after that
            many training batches.
        stats: the statistics of the run.
    """

    def __init__(self, on_stats: OnStats | None, stats: Stats) -> None:
        self.on_stats, self._stats = on_stats, stats
        self.every: int | None = getattr(on_stats, "every", None)
        self.told = stats.copy()
        """The statistics of the last report."""

    def step_is_over(self, epochs_done: float) -> None:
        """Report if n training batches have passed since the last report."""
        if self.every and self._stats.batches - self.told.batches >= self.every:
            self.report(epochs_done)

    def report(self, epochs_done: float) -> None:
        """Tell what has not been told yet."""
        if self.on_stats is not None:
            now, then = self._stats, self.told
            found = {name: float(getattr(now, name) - getattr(then, name)) for name in (*COUNTS, "batches")}
            losses = {name: now.loss_sums[name] - then.loss_sums[name] for name in _LOSSES}
            found["selectivity"] = quotient(now.trained + now.queued - then.trained - then.queued, found["offered"])
            found["mean_trained_loss"] = quotient(losses["trained"], losses["num_trained"])
            found["mean_candidate_loss"] = quotient(losses["candidates"], losses["num_candidates"])
            found |= {f"seconds_{phase}": now.seconds[phase] - then.seconds[phase] for phase in PHASES}
            known = {name: value for name, value in found.items() if math.isfinite(value)}
            self.on_stats({"epoch": epochs_done, "step": float(now.batches), **known})
        self.told = self._stats.copy()


class ShareCheck:
    """Counts what the policy selects, and logs a line once if an epoch's fraction is far from the one asked for.

    It also says why an epoch is trained on as a whole, if the method chose so, and logs that once. Candidates that are
    trained on without asking the policy (in a warm-up, outside a window) do not count.

    Args:
        method: the method.
        policy: the run's own policy. Its `selectivity` is the fraction asked for; if that is None, nothing is checked.
        quiet: log nothing. When ranks select together, all but one are quiet.
    """

    def __init__(self, method: Method, policy: Policy, *, quiet: bool = False) -> None:
        self._asked: float | None = None if quiet else policy.selectivity
        self._method, self._policy = method, policy
        self._warns = not quiet
        self.decided = self.selected = 0
        """Candidates that the policy decided about in this epoch, and those that it selected."""

    def why_all(self, epoch: int, why_no_scores: str | None) -> str:
        """Say why a planned epoch trains on everything; "" if it does not, or if the user asked for it.

        Args:
            epoch: number of the epoch, from 0.
            why_no_scores: why the scorer has no scores on purpose, if so.
        """
        method = self._method
        if method.policy.selectivity is not None or not method.scorer.needs.training_losses:
            return ""
        if self.decided:
            reason = self._policy.explanation() if self.selected >= self.decided else None
            if reason is not None and self._warns:
                self._warns = False
                _logger.warning(
                    "%s trains on everything in epoch %d: %s. It decides anew before every epoch",
                    method.name,
                    epoch + 1,
                    reason,
                )
        elif epoch == 0:
            reason = "losses become known in the first epoch"
        elif method.schedule.needs_num_epochs or method.schedule.warmup_epochs > epoch:
            reason = "selection is off, by the method's start=, end= or warmup_epochs="
        else:
            reason = why_no_scores or "no candidate has a loss from an earlier epoch"
        return f"trained on everything in epoch {epoch + 1}: {reason}" if reason is not None else ""

    def end_epoch(self, epoch: int) -> None:
        """Log a line if the epoch's fraction is far from the one asked for, and start counting anew."""
        decided, selected = self.decided, self.selected / self._method.batch_scale
        self.decided = self.selected = 0
        if self._asked is None or not decided:
            return
        expected, missing = self._asked * decided, abs(selected - self._asked * decided)
        if missing <= max(_FAR * expected, _BEYOND_CHANCE * (expected * (1 - self._asked)) ** 0.5):
            return
        advice = self._policy.explanation() or (
            "ask for another selectivity, or use larger candidate batches, until stats.selectivity fits"
        )
        _logger.warning(
            "%s was asked to select %.3f of the candidates, and selected %.3f of %d in epoch %d: %s",
            self._method.name,
            self._asked,
            selected / decided,
            decided,
            epoch + 1,
            advice,
        )
        self._asked = None  # once is enough
