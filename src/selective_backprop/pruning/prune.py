"""Pruning before training: which examples to drop, by scores that are stored by id.

# M = data set
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from selective_backprop.options import require_numbers
from selective_backprop.saved import read_state, write_state

_KIND = "scores 1"


def save_scores(scores: Tensor | Sequence[float], path: str | os.PathLike[str]) -> None:
    """Write scores to a file: plain data and their checksums. If it fails, an OSError leaves no partial file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_scores(torch.tensor([0.5, 1.0]), f"{folder}/scores.pt")
    ...     load_scores(f"{folder}/scores.pt", num_examples=2)
    tensor([0.5000, 1.0000])
    """
    write_state(path, _KIND, {"scores": _numbers(scores, "scores")})


def load_scores(path: str | os.PathLike[str], num_examples: int | None = None) -> Tensor:
    """Read scores that `save_scores` wrote. Raises ValueError if the file is damaged.

    num_examples: size of the data set, to check that the scores fit.
    """
    state = read_state(path, _KIND)
    scores = _numbers(state["scores"], "scores")
    if num_examples is not None and len(scores) != num_examples:
        raise ValueError(f"{os.fspath(path)} has scores of {len(scores)} examples, the data set has {num_examples}")
    return scores


def keep_after_pruning(
    scores: Tensor | Sequence[float],
    prune: float,
    *,
    highest: float = 0.0,
    classes: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """Decide which ids to keep: (M,) bool. Of K scored examples, the round(prune * K) lowest are dropped.

    Of equal scores, those with lower ids are dropped first. Examples without a score (NaN) are kept and do not count.

    Args:
        scores: (M,) by id: a tensor, a numpy array or a list.
        prune: fraction of the lowest scores to drop.
        highest: fraction of the highest scores to drop as well, because wrong labels are found there.
        classes: one label per id. The fractions are then those of each class, so that easy classes do not disappear. At
            least one example of each class is kept.

    >>> keep_after_pruning(torch.tensor([0.3, 0.1, float("nan"), 0.9, 0.2]), 0.5).tolist()
    [True, False, True, True, False]
    """
    scores = _numbers(scores, "scores")
    require_numbers(prune=prune, highest=highest)
    if not (prune >= 0 and highest >= 0 and prune + highest < 1):
        raise ValueError(f"prune and highest must be >= 0 and together below 1, got {prune} and {highest}")
    scored = (~scores.isnan()).nonzero().flatten()
    order = scored[scores[scored].argsort(stable=True)]
    groups: Sequence[Tensor] = [order]
    if classes is not None:
        labels = labels_by_id(classes)
        if labels.shape != scores.shape:
            raise ValueError(f"classes must have one label for each of {len(scores)} ids, got {tuple(labels.shape)}")
        ordered, position = labels[order].sort(stable=True)
        groups = order[position].tensor_split(ordered.diff().nonzero().flatten() + 1)
    keep = torch.ones(len(scores), dtype=torch.bool)
    for group in groups:
        most = len(group) - 1  # by rounding, a small class could get lost
        num_lowest = min(round(prune * len(group)), most)
        num_highest = min(round(highest * len(group)), most - num_lowest)
        keep[group[:num_lowest]] = False
        keep[group[len(group) - num_highest :]] = False
    return keep


def labels_by_id(classes: Tensor | Sequence[int]) -> Tensor:
    """Convert classes, given as a tensor, a numpy array or a list, to (M,) int64 on the CPU.

    >>> labels_by_id([0, 2, 1])
    tensor([0, 2, 1])
    """
    labels = _numbers(classes, "classes", "whole numbers")
    if labels.is_floating_point():
        raise TypeError(f"classes must be whole numbers, one for each id, got {labels.dtype}")
    return labels.to(torch.int64)


def _numbers(values: Tensor | Sequence[float], name: str, kind: str = "numbers") -> Tensor:
    """Convert one number per id, given as a tensor, a numpy array or a list, to a tensor (M,) on the CPU."""
    try:
        found = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError):  # words, or lists of different lengths
        found = torch.empty(0, dtype=torch.complex64)
    if found.is_complex() or found.layout != torch.strided:
        raise TypeError(f"{name} must be {kind}, one for each id, got {values!r:.100}")
    if found.dim() != 1:
        raise ValueError(f"{name} must be 1-D, one number per id, got shape {tuple(found.shape)}")
    return found
