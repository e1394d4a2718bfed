"""Statistics of a loader: counts of examples, and seconds by phase."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

_LOSSES = ("trained", "num_trained", "candidates", "num_candidates")
PHASES = ("loading", "scoring", "selecting", "training")

Combination = Literal["count", "sums", "longest", "same", "queue"]
"""What becomes of a statistic when a run is resumed with another number of ranks.

- "count": a whole number that each rank counts for itself. Each new rank gets an equal part of the sum over old ranks.
- "sums": a dict of sums, divided in the same way, but not rounded. Quotients of two sums do not change.
- "longest": a dict of seconds. Each new rank gets the seconds of the rank that took longest.
- "same": equal on all ranks.
- "queue": the length of the rank's queue, which follows from the new queue.
"""


def _combine(how: Combination) -> dict[str, Combination]:
    """Make the metadata of a field that declares how ranks combine it."""
    return {"combine": how}


@dataclass
class Stats:
    """Counts of examples and seconds by phase, since the loader was made or since the run that it resumed began.

    Seconds are measured on the CPU. With a GPU, the end of a training step may count as scoring, because scoring waits
    for the GPU to finish that step.
    """

    offered: int = field(default=0, metadata=_combine("count"))
    """Number of candidates offered, skipped ones included."""
    scored: int = field(default=0, metadata=_combine("count"))
    """Number of candidates scored by a selection pass."""
    trained: int = field(default=0, metadata=_combine("count"))
    """Number of examples in the training batches given out."""
    skipped_before_loading: int = field(default=0, metadata=_combine("count"))
    """Number of candidates that were not loaded: skipped by a known score, or left out by drop_last."""
    dropped: int = field(default=0, metadata=_combine("count"))
    """Number of selected examples that filled no batch at the end of an epoch, and were dropped for drop_last."""
    queued: int = field(default=0, metadata=_combine("queue"))
    """Number of selected examples that wait for their batch to fill."""
    batches: int = field(default=0, metadata=_combine("same"))
    """Number of training batches given out."""
    loss_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LOSSES, 0.0), metadata=_combine("sums"))
    """Sums and numbers of losses, from which `mean_trained_loss` and `mean_candidate_loss` are computed."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0), metadata=_combine("longest"))
    """Seconds by phase."""
    note: str = field(default="", metadata=_combine("same"))
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

    def count(self, **more: int) -> None:
        """Add to these counts, such as `count(trained=32, batches=1)`."""
        for name, number in more.items():
            setattr(self, name, getattr(self, name) + number)

    def set_queued(self, queued: int) -> None:
        """Set the number of selected examples that wait for their batch to fill."""
        self.queued = queued

    def set_note(self, note: str) -> None:
        """Set why the epoch is trained on as a whole; "" if it is not, or if the user asked for it."""
        self.note = note

    def count_losses(self, total: float, count: int, of: str) -> None:
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

    def switch(self, phase: str) -> str:
        """Count time for this phase from now on; "" for none. Returns the phase that was counted until now."""
        now, before = time.perf_counter(), self._phase
        if before:
            self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    def state_dict(self) -> dict[str, Any]:
        return {f.name: copy.copy(getattr(self, f.name)) for f in fields(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, copy.copy(value))

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


COMBINATIONS: dict[str, Combination] = {statistic.name: statistic.metadata["combine"] for statistic in fields(Stats)}
"""How ranks combine each statistic. If a statistic does not declare it, importing this module raises a KeyError."""


def quotient(total: float, count: float) -> float:
    """Divide, or return NaN if there is nothing to divide by."""
    return total / count if count else float("nan")
