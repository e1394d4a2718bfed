"""Tells the user's `on_stats` what selection did since it was last told: in an epoch, or in n training batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from selective_backprop.distributed.team import Team
from selective_backprop.sampler.stats import COMBINATIONS, PHASES, Stats, quotient

OnStats = Callable[[dict[str, float]], None]
"""Called with a flat dict of numbers: what happened since the last call."""


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


_COUNTS = tuple(name for name, how in COMBINATIONS.items() if how == "count")


class Reporting:
    """Calls `on_stats` on rank 0, with sums over all ranks. All ranks must call the methods at the same time.

    Args:
        on_stats: the user's function, or None. If it has an attribute `every`, it is also called after that many
            training batches.
        stats: the statistics that the loader counts.
        team: the ranks that train together.
    """

    def __init__(self, on_stats: OnStats | None, stats: Stats, team: Team) -> None:
        self.on_stats = on_stats
        self.every: int | None = getattr(on_stats, "every", None)
        self._stats, self._team = stats, team
        self._told = stats.copy()
        self._due = False

    def begin_epoch(self) -> None:
        """An epoch begins, or goes on after a resume: it is to be reported."""
        self._due = True

    def forget_epoch(self) -> None:
        """The epoch does not count: it is not to be reported."""
        self._due = False

    def step_is_over(self, epochs_done: float) -> None:
        """Report if n training batches have passed since the last report."""
        if self.on_stats is not None and self.every and self._stats.batches - self._told.batches >= self.every:
            self._report(epochs_done)

    def epoch_is_over(self, epochs_done: float) -> None:
        """Report what has not been reported yet. A second call for the same epoch does nothing."""
        due, self._due = self._due, False
        if self.on_stats is not None and due:
            self._report(epochs_done)

    def _report(self, epochs_done: float) -> None:
        assert self.on_stats is not None
        sums = _since(self._stats, self._told)
        shared = self._team.ranks.share(list(sums.values()))
        if self._team.is_first:
            by_name = dict(zip(sums, zip(*shared, strict=True), strict=True))
            self.on_stats({"epoch": epochs_done, "step": float(self._stats.batches), **_flat(by_name)})
        self._told = self._stats.copy()

    def state_dict(self) -> dict[str, Any]:
        return self._told.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._told.load_state_dict(state)


def _since(stats: Stats, told: Stats) -> dict[str, float]:
    """What this rank did since then, as sums that can be combined over ranks."""
    sums = {name: float(getattr(stats, name) - getattr(told, name)) for name in _COUNTS}
    sums["selected"] = stats.trained + stats.queued - told.trained - told.queued
    sums |= {f"loss_{name}": stats.loss_sums[name] - told.loss_sums[name] for name in stats.loss_sums}
    sums |= {f"seconds_{phase}": stats.seconds[phase] - told.seconds[phase] for phase in PHASES}
    return sums | {"batches": float(stats.batches - told.batches)}


def _flat(by_name: dict[str, tuple[float, ...]]) -> dict[str, float]:
    """Combine the sums of all ranks. What is not known is left out."""
    total = {name: sum(values) for name, values in by_name.items()}
    found = {name: total[name] for name in _COUNTS} | {"batches": by_name["batches"][0]}
    found["selectivity"] = quotient(total["selected"], total["offered"])
    found["mean_trained_loss"] = quotient(total["loss_trained"], total["loss_num_trained"])
    found["mean_candidate_loss"] = quotient(total["loss_candidates"], total["loss_num_candidates"])
    found |= {f"seconds_{phase}": max(by_name[f"seconds_{phase}"]) for phase in PHASES}
    return {name: value for name, value in found.items() if math.isfinite(value)}
