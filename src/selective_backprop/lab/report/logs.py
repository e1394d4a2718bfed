"""The ledgers that runs wrote as they went, for the sections that ask what happened to single examples."""

from __future__ import annotations

from dataclasses import dataclass

from selective_backprop.lab.ledger_log import LedgerHistory, read_ledger_log
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.runs import Run

MOST_LOGS = 8
"""Of a comparison. A sweep has many runs, and their ledgers would fill the page."""


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


def read_logs(comparison: Comparison) -> dict[str, Log]:
    """By label, of the first seed: examples of one seed need not be those of another. Baselines are left out."""
    logs: dict[str, Log] = {}
    for label, runs in comparison.by_label.items():
        if len(logs) == MOST_LOGS:
            break
        if not runs[0].is_baseline and any((runs[0].path / "ledger").glob("epoch-*.npz")):
            logs[label] = Log(runs[0], read_ledger_log(runs[0].path))
    return logs


def moments(num_epochs: int) -> list[int]:
    """The first, the middle and the last epoch.

    >>> moments(9), moments(1)
    ([0, 4, 8], [0])
    """
    return sorted({0, num_epochs // 2, num_epochs - 1})
