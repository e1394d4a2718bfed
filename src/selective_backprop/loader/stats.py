"""What a loader did so far: counts and seconds."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

_LOSSES = ("trained", "num_trained", "candidates", "num_candidates")
PHASES = ("loading", "scoring", "selecting", "training")

Combination = Literal["count", "sums", "mean of scores", "longest", "same", "queue"]
"""How a statistic goes on when a run is resumed by another number of ranks.

- "count": a whole number that ranks count each for itself. Ranks get equal parts of the sum over ranks.
- "sums": the same for a dict of sums, which need not be whole numbers: quotients of two of them stay as they are.
- "mean of scores": an average over scores. Ranks get the average over the scores of all ranks.
- "longest": a dict of seconds. Ranks get the seconds of the rank that took longest.
- "same": it is the same on all ranks.
- "queue": the length of a rank's queue, which is dealt out itself.
"""


def _combine(how: Combination) -> dict[str, Combination]:
    """Metadata of a field."""
    return {"combine": how}


@dataclass
class Stats:
    """Counts of examples and seconds by phase since the loader was made (or since the run it resumed began).

    Seconds are the caller's clock: scoring waits for the device, so with a GPU the end of a training step that
    is still under way counts as scoring.
    """

    offered: int = field(default=0, metadata=_combine("count"))
    """Candidates, skipped ones included."""
    scored: int = field(default=0, metadata=_combine("count"))
    """Candidates that had a selection pass."""
    reused: int = field(default=0, metadata=_combine("count"))
    """Examples trained on by the pass that scored them: their forward pass was no extra one."""
    trained: int = field(default=0, metadata=_combine("count"))
    """Examples in the batches given out."""
    skipped_before_loading: int = field(default=0, metadata=_combine("count"))
    """Candidates that were rejected by a known score: neither loaded nor augmented."""
    queued: int = field(default=0, metadata=_combine("queue"))
    """Examples that are selected and wait for their batch to fill."""
    batches: int = field(default=0, metadata=_combine("same"))
    """Training batches given out."""
    fidelity: float = field(default=float("nan"), metadata=_combine("mean of scores"))
    """Rank correlation of cheap scores with exact ones, on the last sample; 1 where scores are exact."""
    staleness: float = field(default=0.0, metadata=_combine("mean of scores"))
    """Training batches given out between the weights that made a score and its use, on average over all scores."""
    loss_sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LOSSES, 0.0), metadata=_combine("sums"))
    """Sums of the losses that `mean_trained_loss` and `mean_candidate_loss` are means of, and how many they are."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0), metadata=_combine("longest"))
    """Seconds by phase."""

    def __post_init__(self) -> None:
        self._phase, self._since = "", 0.0

    @property
    def selectivity(self) -> float:
        """Achieved so far: selected among offered candidates."""
        return (self.trained + self.queued) / self.offered if self.offered else float("nan")

    @property
    def mean_trained_loss(self) -> float:
        """Mean loss of the examples trained on, as they were trained on: hard ones, where these are selected.

        It is no training loss as plain training has it, and above that of all candidates. NaN before `loader.loss` was
        called, or where that does not tell the loss of each example.
        """
        return _mean(self.loss_sums["trained"], self.loss_sums["num_trained"])

    @property
    def mean_candidate_loss(self) -> float:
        """Mean loss of all candidates that had a selection pass: compare this with plain training and with test loss.

        NaN where there was none, or where a method scores by something else than the loss of the model.
        """
        return _mean(self.loss_sums["candidates"], self.loss_sums["num_candidates"])

    def count_losses(self, total: float, count: int, of: str) -> None:
        """Sum and number of the losses of examples "trained" on, or of "candidates" in a selection pass."""
        self.loss_sums[of] += total
        self.loss_sums[f"num_{of}"] += count

    def copy(self) -> Stats:
        """As they are now."""
        return replace(self, seconds=dict(self.seconds), loss_sums=dict(self.loss_sums))

    def since(self, then: Stats) -> dict[str, float]:
        """What an epoch did, to be logged; `then` is a copy from its beginning.

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
        """From now on time counts as this phase's; "": as none's. Returns the phase that it counted as until now."""
        now, before = time.perf_counter(), self._phase
        if before:
            self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    def count_scores(self, size: int, *, fidelity: float, staleness: int) -> None:
        """A selection pass of that many candidates."""
        self.scored += size
        self.fidelity = fidelity
        self.staleness += (staleness - self.staleness) * size / self.scored

    def state_dict(self) -> dict[str, Any]:
        return {f.name: copy.copy(getattr(self, f.name)) for f in fields(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if unknown := state.keys() - {f.name for f in fields(self)}:
            raise ValueError(f"the saved statistics have {', '.join(sorted(unknown))}, which these do not")
        for name, value in state.items():
            setattr(self, name, copy.copy(value))

    def __str__(self) -> str:
        seconds = ", ".join(f"{phase} {self.seconds[phase]:.1f}" for phase in PHASES)
        fidelity = f", fidelity of scores {self.fidelity:.3f}" if self.fidelity < 1 else ""
        staleness = f", staleness of scores {self.staleness:.2f} batches" if self.staleness > 0 else ""
        return (
            f"offered {self.offered:,}, scored {self.scored:,}, trained {self.trained:,} in {self.batches:,} batches, "
            f"skipped before loading {self.skipped_before_loading:,}, queued {self.queued:,}; "
            f"selectivity {self.selectivity:.3f}{fidelity}{staleness}; seconds: {seconds}"
        )


COMBINATIONS: dict[str, Combination] = {statistic.name: statistic.metadata["combine"] for statistic in fields(Stats)}
"""How ranks combine each statistic. A statistic that does not declare it is a KeyError when this is imported."""


def _mean(total: float, count: float) -> float:
    return total / count if count else float("nan")
