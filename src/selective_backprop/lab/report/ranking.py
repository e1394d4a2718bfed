"""What a ledger says about examples: which are easy, hard, likely mislabelled, hardly used.

# M = examples, E = epochs
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

import selective_backprop as sb
from selective_backprop.lab.report.logs import Log

FRACTIONS = tuple(round(0.05 * i, 2) for i in range(1, 20))
Floats = NDArray[np.float64]


def mean_loss(log: Log, since: float = 0.0) -> Floats:
    """(M,) mean loss over the epochs from this fraction of the run on; NaN if no loss is known."""
    losses = log.history.loss[int(since * log.num_epochs) :].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns of examples without any
        return np.asarray(np.nanmean(losses, axis=0))


def times_used(log: Log) -> Floats:
    """(M,) how often each example was trained on. Among equals, the one with the lower mean loss ranks first."""
    counts = log.history.selected.astype(np.float64).sum(0)
    losses = np.nan_to_num(mean_loss(log), nan=0.0)
    return np.asarray(counts + losses / (losses.max() + 1))


def suspicion(log: Log, labels: NDArray[np.int64] | None = None) -> Floats:
    """(M,) how likely each label is wrong, measured by the mean loss in the second half of the run.

    What a network still gets wrong after it has learned the rest is hard, or labelled wrongly. Relative to the median
    of its class, where labels are known: a class that is hard as a whole is not mislabelled as a whole.
    """
    losses = mean_loss(log, since=0.5)
    if labels is None:
        return losses
    medians = np.zeros_like(losses)
    for label in np.unique(labels):
        mine = losses[labels == label]
        medians[labels == label] = np.nanmedian(mine) if not np.isnan(mine).all() else 0.0
    return np.asarray(losses - medians)


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
    return [
        (fraction, sb.pruning.overlap(one, other, fraction)) for fraction in FRACTIONS if round(fraction * size) > 0
    ]


def combined_rank(a: Floats, b: Floats) -> Floats:
    """(M,) mean of both ranks, as fractions of M. It is low if both say that an example can be left out.

    >>> combined_rank(np.array([0.1, 0.5, 0.9]), np.array([3.0, 2.0, 9.0]))
    array([0.16666667, 0.16666667, 0.66666667])
    """
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values) for values in (a, b)]
    return np.asarray((ranks[0] + ranks[1]) / 2)
