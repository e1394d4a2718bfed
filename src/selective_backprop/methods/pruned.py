"""Diet: prune the data set before training, then use any method on the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from selective_backprop.method import Method, require_method
from selective_backprop.pruning.prune import keep_after_pruning


def diet(
    *,
    method: Method,
    scores: Tensor | Sequence[float],
    prune: float = 0.25,
    highest: float = 0.0,
    classes: Tensor | Sequence[int] | None = None,
) -> Method:
    """Prune the data set before training, then use a method on the rest. Diet-SB prunes by EL2N and then uses SB.

    Args:
        method: the method for the rest; `traditional()` for pruning alone.
        scores: one score per id, for example from `average_scores`: a tensor, a numpy array or a list.
        prune: fraction of examples with the lowest scores to leave out for good.
        highest: fraction with the highest scores to leave out as well, for noisy labels.
        classes: one label per id, to prune the same fraction of every class.

    >>> import torch
    >>> from selective_backprop import traditional
    >>> diet(method=traditional(), scores=torch.tensor([0.1, 0.9, 0.5, 0.7])).keep.tolist()
    [False, True, True, True]
    """
    require_method(method)
    keep = keep_after_pruning(scores, prune, highest=highest, classes=classes)
    if method.keep is not None:
        keep = keep & method.keep
    return dataclasses.replace(method, name=f"diet({method.name})", keep=keep)
