"""Ledgers that runs wrote after each epoch, and what they say about examples: easy, hard, hardly used.

# M = examples
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import Run
from selective_backprop_lab.runs.ledger_log import LedgerHistory, read_ledger_log
from selective_backprop_lab.study.agreement import overlap

Floats = NDArray[np.float64]
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


def read_logs(comparison: Comparison, material: Material) -> dict[str, Log]:
    """Logs by label, without baselines. Takes the first seed that has a log, since seeds may have other examples."""
    if comparison.id in material.logs:
        return material.logs[comparison.id]
    logs = material.logs[comparison.id] = {}
    for label, runs in comparison.by_label.items():
        for run in runs if not runs[0].is_baseline and len(logs) < MOST_LOGS else ():
            if not any((run.path / "ledger").glob("epoch-*.pt")):
                continue
            history = material.read(f"ledger of {label}, seed {run.seed}", read_ledger_log, run.path)
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


# ---- rankings of examples

FRACTIONS = tuple(round(0.05 * i, 2) for i in range(1, 20))


def mean_loss(log: Log) -> Floats:
    """(M,) mean loss over the epochs; NaN if no loss is known."""
    losses = log.history.loss.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of examples without any
        return np.asarray(np.nanmean(losses, axis=0))


def times_used(log: Log) -> Floats:
    """(M,) how often each example was trained on. Among equals, the one with the lower mean loss ranks first."""
    counts = log.history.selected.astype(np.float64).sum(0)
    losses = np.nan_to_num(mean_loss(log), nan=0.0)
    return np.asarray(counts + losses / (losses.max() + 1))


def highest(values: Floats, count: int) -> list[int]:
    """Ids of the highest values, highest first. Examples without a value are left out.

    >>> highest(np.array([0.1, np.nan, 0.7, 0.7]), 3)
    [2, 3, 0]
    """
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
    return [int(i) for i in order[:count] if not np.isnan(values[i])]


def lowest(values: Floats, count: int) -> list[int]:
    """Ids of the lowest, lowest first; those without a value never."""
    return highest(-values, count)


def overlaps(a: Floats, b: Floats) -> list[tuple[float, float]]:
    """How much of the lowest fraction by `a` is also among the lowest by `b`, for several fractions."""
    one, other = torch.from_numpy(a), torch.from_numpy(b)
    size = int((~(one.isnan() | other.isnan())).sum())
    return [(fraction, overlap(one, other, fraction)) for fraction in FRACTIONS if round(fraction * size) > 0]


def combined_rank(a: Floats, b: Floats) -> Floats:
    """(M,) mean of both ranks, as fractions of M. It is low if both say that an example can be left out.

    >>> combined_rank(np.array([0.1, 0.5, 0.9]), np.array([3.0, 2.0, 9.0]))
    array([0.16666667, 0.16666667, 0.66666667])
    """
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values) for values in (a, b)]
    return np.asarray((ranks[0] + ranks[1]) / 2)
