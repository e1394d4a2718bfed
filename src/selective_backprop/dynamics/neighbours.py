"""Nearest neighbours of examples: near-duplicates among them, and what their labels say about a label.

# M = examples, D = dimensions, K = neighbours
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selective_backprop.files.reading import open_regular
from selective_backprop.files.writing import write_whole

Array = NDArray[Any]
FILE = "duplicates.npz"
"""Name of the file in the folder of a run."""
NUM_NEIGHBOURS = 20
RATIO = 0.13
"""Near-duplicates are closer than this share of the median distance to the nearest neighbour."""
BLOCK = 1024
"""Rows whose similarities to all examples are in memory at once: 4 KB per example."""
_SHARPNESS, _LEAST_VOTE = 10.0, 0.05
_ROUNDING = 1e-6  # a cosine of two equal vectors in float32


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest neighbours of each example, by the cosine of their features."""

    ids: Array
    """(M, K) int64, the nearest first."""
    similarities: Array
    """(M, K) float32 cosines."""


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of near-duplicates. Every member of a group is a near-duplicate of the group's first example."""

    first: Array
    """(M,) int64: the id of the group's first example; its own id for examples without near-duplicates."""
    threshold: float
    """Cosine from which on two examples are near-duplicates."""
    neighbours: Neighbours
    """The nearest neighbours, whether they are near-duplicates or not."""

    def __len__(self) -> int:
        return len(self.first)

    @functools.cached_property
    def group(self) -> Array:
        """(M,) int64: the number of the group, from 0; -1 for examples without near-duplicates."""
        _, where, sizes = np.unique(self.first, return_inverse=True, return_counts=True)
        numbers = np.cumsum(sizes > 1) - 1
        return np.where(sizes[where] > 1, numbers[where], -1)

    @property
    def nearest(self) -> Array:
        """(M,) int64: the nearest neighbour."""
        return np.asarray(self.neighbours.ids[:, 0], dtype=np.int64)

    @property
    def similarity(self) -> Array:
        """(M,) float32: cosine of the features with the nearest neighbour's."""
        return np.asarray(self.neighbours.similarities[:, 0])

    @property
    def num_groups(self) -> int:
        return int(self.group.max()) + 1 if len(self.group) else 0

    @property
    def spare(self) -> Array:
        """Return which examples are near-duplicates of an earlier one that is kept: (M,) bool."""
        return np.asarray(self.first != np.arange(len(self.first)))

    def conflicts(self, labels: Sequence[int] | Tensor | Array) -> Array:
        """Return which examples are in a group with two or more labels, so that at least one is wrong: (M,) bool."""
        labels = np.asarray(labels)
        if labels.shape != self.group.shape:
            raise ValueError(f"labels must be one per example, ({len(self.group)},), got shape {labels.shape}")
        differs = labels != labels[self.first]
        return np.asarray((self.group >= 0) & np.isin(self.group, self.group[differs]))

    def save(self, file: str | Path) -> None:
        """Write groups and neighbours to a file, which is never half-written. It takes 160 bytes per example."""
        ids, similarities = self.neighbours.ids.astype(np.uint32), self.neighbours.similarities.astype(np.float32)
        np.savez(buffer := io.BytesIO(), first=self.first, threshold=self.threshold, ids=ids, similarities=similarities)
        write_whole({Path(file): buffer.getvalue()})

    @classmethod
    def load(cls, file: str | Path) -> Duplicates:
        """Read a file that `save` wrote, without running code. Raises ValueError if it is damaged."""
        try:
            with open_regular(Path(file)) as opened, np.load(opened, allow_pickle=False) as found:
                first, ids, similarities = found["first"], found["ids"].astype(np.int64), found["similarities"]
                threshold = float(found["threshold"])
            shapes = first.ndim == 1 and ids.ndim == 2 and ids.shape == similarities.shape and len(ids) == len(first)
            if (
                not shapes
                or not ids.shape[1]
                or any(len(x) and not 0 <= x.min() <= x.max() < len(first) for x in (first, ids))
            ):
                raise ValueError("shapes or ids do not fit")
        except OSError:
            raise
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            reason = str(error).partition(". If you trust")[0]  # numpy adds how to run the code in it
            raise ValueError(f"{file} is damaged: {reason}") from None
        return cls(first.astype(np.int64), threshold, Neighbours(ids, similarities.astype(np.float32)))


def nearest_neighbours(features: Tensor | Array, k: int = NUM_NEIGHBOURS) -> Neighbours:
    """Find the k nearest neighbours of every example by the cosine of features: exact, block by block.

    It takes M * M * D multiplications and 4 KB of memory per example. If there are fewer than k others, k is smaller.

    features: (M, D), such as the inputs of a network's last layer; see `last_features`.

    >>> nearest_neighbours(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1]]), k=1).ids.flatten().tolist()
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
    return Neighbours(ids.numpy(), similarities.numpy())


def label_votes(neighbours: Neighbours, labels: Array) -> Array:
    """Compute how well neighbours' labels fit each label: (M,), the log of the votes for it over the best other's.

    Each neighbour votes with exp(10 (its cosine - the nearest one's)). Shares of the votes count with at least 0.05.
    """
    theirs = np.where(labels[neighbours.ids] >= 0, labels[neighbours.ids], -1)
    weights = np.exp(_SHARPNESS * (neighbours.similarities - neighbours.similarities[:, :1])).astype(np.float64)
    weights = np.where(theirs >= 0, weights, 0.0)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-12)
    own = (weights * (theirs == labels[:, None])).sum(1)
    other = np.zeros(len(labels))
    for column in theirs.T:  # the votes of each neighbour's class, wherever it is not the label
        votes = (weights * (theirs == column[:, None])).sum(1)
        np.maximum(other, np.where((column != labels) & (column >= 0), votes, 0.0), out=other)
    return np.asarray(np.log(own + _LEAST_VOTE) - np.log(other + _LEAST_VOTE))


def near_duplicates(features: Tensor | Array, *, ratio: float = RATIO, threshold: float | None = None) -> Duplicates:
    """Find groups of near-duplicates by the cosine of features: exact, block by block, without new dependencies.

    Two examples are near-duplicates if their distance, 1 - cosine, is at most `ratio` times the median distance of
    examples to their nearest neighbours. This is the rule of cleanlab's Datalab. Examples are taken in the order of
    ids: one that is near the first example of a group joins it, and else begins a group of its own. So chains of
    examples, each near the next, do not become one group.

    Args:
        features: (M, D).
        ratio: share of the median distance.
        threshold: a cosine to use instead of the rule, in [-1, 1]. 1 finds equal features alone.

    >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.001], [1.0, 1.0], [-1.0, 0.5]])
    >>> near_duplicates(features).group.tolist()
    [0, -1, 0, -1, -1]
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio}")
    if threshold is not None and not -1 <= threshold <= 1:
        raise ValueError(f"threshold is a cosine in [-1, 1], got {threshold}")
    unit = _unit(features)
    found = nearest_neighbours(features)
    similarity = found.similarities[:, 0]
    if threshold is None:
        threshold = 1 - ratio * max(0.0, float(np.median(1 - similarity)))
    bound = threshold - _ROUNDING
    # An example of zeros points nowhere, and has no near-duplicates.
    close = (similarity >= bound) & (unit.norm(dim=1) > 0).numpy()
    return Duplicates(_join(unit, np.flatnonzero(close), bound), threshold, found)


def exact_copies(inputs: Tensor | Array) -> Array:
    """Return the first example with exactly the same content, for each example: (M,) int64, its own id if it is first.

    inputs: (M, ...) pixels, bytes or token ids.

    >>> exact_copies(torch.tensor([[1, 2], [3, 4], [1, 2]])).tolist()
    [0, 1, 0]
    """
    rows = inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else np.asarray(inputs)
    seen: dict[bytes, int] = {}
    return np.array(
        [
            seen.setdefault(hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest(), id)
            for id, row in enumerate(rows)
        ]
    )


def _join(unit: Tensor, candidates: Array, bound: float) -> Array:
    """Return the first example of each example's group: (M,). candidates: ids that may have near-duplicates, rising."""
    first = np.arange(len(unit))
    leaders = np.empty(0, dtype=np.int64)
    for ids in np.array_split(candidates, max(1, -(-len(candidates) // BLOCK))):
        mine = unit[torch.from_numpy(ids)]
        free = np.ones(len(ids), dtype=bool)
        if len(leaders):
            best, place = (mine @ unit[torch.from_numpy(leaders)].T).max(1)
            free = (best < bound).numpy()
            first[ids[~free]] = leaders[place.numpy()[~free]]
        among = ((mine @ mine.T) >= bound).numpy()
        begun = []
        for row in range(len(ids)):
            if free[row]:
                begun.append(row)
                joins = among[row] & free
                joins[: row + 1] = False
                first[ids[joins]] = ids[row]
                free &= ~joins
        leaders = np.concatenate([leaders, ids[begun]])
    return first


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
