"""Nearest neighbours of examples, and what their labels say about a label.

# M = examples, D = dimensions, K = neighbours
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
NUM_NEIGHBOURS = 20
BLOCK = 1024
"""Rows whose similarities to all examples are in memory at once: 4 KB per example."""
_SHARPNESS, _LEAST_VOTE = 10.0, 0.05


def nearest_neighbours(features: Tensor | Array, k: int = NUM_NEIGHBOURS) -> tuple[Array, Array]:
    """Find the k nearest neighbours of every example by the cosine of features: exact, block by block.

    Returns their ids, (M, K) int64, the nearest first, and the cosines, (M, K) float32. It takes M * M * D
    multiplications and 4 KB of memory per example. If there are fewer than k others, k is smaller.

    features: (M, D), such as the inputs of a network's last layer; see `last_features`.

    >>> nearest_neighbours(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]), k=1)[0].flatten().tolist()
    [2, 2, 0]
    """
    unit = _unit(features)
    k = min(k, len(unit) - 1)
    if k < 1:
        raise ValueError(f"neighbours need at least 2 examples and k >= 1, got {len(unit)} examples and {k=}")
    ids = torch.empty(len(unit), k, dtype=torch.int64)
    similarities = torch.empty(len(unit), k)
    for start in range(0, len(unit), BLOCK):
        block = unit[start : start + BLOCK] @ unit.T
        rows = torch.arange(len(block))
        block[rows, start + rows] = -2.0  # an example is no neighbour of itself
        similarities[start : start + BLOCK], ids[start : start + BLOCK] = block.topk(k, 1)
    return ids.numpy(), similarities.numpy()


def label_votes(ids: Array, similarities: Array, labels: Array) -> Array:
    """Compute how well neighbours' labels fit each label: (M,), the log of the votes for it over the best other's.

    Each neighbour votes with exp(10 (its cosine - the nearest one's)). Shares of the votes count with at least 0.05.

    ids, similarities: as `nearest_neighbours` finds them.
    """
    theirs = np.where(labels[ids] >= 0, labels[ids], -1)
    weights = np.exp(_SHARPNESS * (similarities - similarities[:, :1])).astype(np.float64)
    weights = np.where(theirs >= 0, weights, 0.0)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-12)
    own = (weights * (theirs == labels[:, None])).sum(1)
    other = np.zeros(len(labels))
    for column in theirs.T:  # the votes of each neighbour's class, wherever it is not the label
        votes = (weights * (theirs == column[:, None])).sum(1)
        np.maximum(other, np.where((column != labels) & (column >= 0), votes, 0.0), out=other)
    return np.asarray(np.log(own + _LEAST_VOTE) - np.log(other + _LEAST_VOTE))


def _unit(features: Tensor | Array) -> Tensor:
    """Return features as float32 rows of length 1; rows of zeros stay."""
    found = torch.as_tensor(np.asarray(features) if not isinstance(features, Tensor) else features).detach().cpu()
    if found.dim() < 2 or not len(found):
        raise ValueError(f"features must be (M, D), one row per example, got shape {tuple(found.shape)}")
    found = found.flatten(1).float()
    if not bool(found.isfinite().all()):
        row = int((~found.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"features must be finite, but those of id {row} are not: leave it out, or look at its inputs")
    lengths: Tensor = found.norm(dim=1, keepdim=True)
    return found / lengths.clamp(min=1e-12)
