"""Ledgers that runs wrote after each epoch, for the sections about single examples."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.runs.ledger_log import LedgerHistory, read_ledger_log

MOST_LOGS = 8
"""Most ledgers shown per comparison. A sweep has many runs, and their ledgers would fill the page."""


@dataclass(frozen=True, eq=False)
class Log:
    """A run and its ledger after each epoch."""

    run: Run
    history: LedgerHistory

    @property
    def num_examples(self) -> int:
        return int(self.history.loss.shape[1])

    @property
    def num_epochs(self) -> int:
        return int(self.history.loss.shape[0])


def read_logs(comparison: Comparison, left_out: LeftOut) -> dict[str, Log]:
    """Logs by label, without baselines. Takes the first seed that has a log, since seeds may have other examples."""
    logs: dict[str, Log] = {}
    for label, runs in comparison.by_label.items():
        if len(logs) == MOST_LOGS:
            break
        for run in runs if not runs[0].is_baseline else ():
            if not any((run.path / "ledger").glob("epoch-*.npz")):
                continue
            what = f"ledger of {label}, seed {run.seed}"
            history = left_out.unless_damaged(what, functools.partial(read_ledger_log, run.path))
            if history is not None:
                logs[label] = Log(run, history)
                break
    return logs


def moments(num_epochs: int) -> list[int]:
    """The first, the middle and the last epoch.

    >>> moments(9), moments(1)
    ([0, 4, 8], [0])
    """
    return sorted({0, num_epochs // 2, num_epochs - 1})
