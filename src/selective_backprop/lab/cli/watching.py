"""Observers of a run: they write its ledger, and probes and records for dashboards if asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from selective_backprop.lab.probes import make_probes
from selective_backprop.lab.runs.dashboards import check_names, make_dashboards
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.training import Observer, Settings


def watching(
    probe: str | None, probe_at: str | None, dashboards: Sequence[str]
) -> Callable[[Path, Settings], Sequence[Observer]]:
    """Return a function that makes the observers of a run from its folder and settings. Wrong options fail at once."""
    if probe_at is not None and probe is None:
        raise ValueError("--probe-at needs --probe: one says when to probe, the other what to probe")
    try:
        at = None if probe_at is None else [int(epoch) for epoch in probe_at.split(",")]
    except ValueError:
        raise ValueError(f"--probe-at takes epochs such as 0,5,9, got {probe_at!r}") from None
    names = probe.split(",") if probe is not None else []
    make_probes(names, Path(), at)
    check_names(dashboards)

    def observers(folder: Path, settings: Settings) -> Sequence[Observer]:
        observers: list[Observer] = [LedgerLog(folder), *make_probes(names, folder, at, epochs=settings.epochs)]
        return [*observers, *make_dashboards(dashboards, folder, settings)]

    return observers
