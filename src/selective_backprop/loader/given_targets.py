"""Checks that a loss is computed against the targets of the batch that was given out, where that is cheap.

# N = examples in the batch, C = classes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from selective_backprop.copying import LaterErrors

_ROUNDING = 1e-5  # of sums over a batch


class TargetCheck:
    """Raises if targets are those of other examples, in another order, or mixed. A GPU is not waited for.

    Targets may be computed from those given out, example by example: shifted, smoothed, normalised. So they are taken
    for others only if examples of the same class differ, or if they are other numbers with the same sums over the
    batch, as after sorting or mixing. Only batches that are pairs (inputs, targets) or have "labels" are checked.
    """

    def __init__(self) -> None:
        self._errors = LaterErrors()

    def __call__(self, data: Any, targets: Any) -> None:
        """Check the targets of a training loss. data: the batch that was given out."""
        given = _targets_of(data)
        if targets is given or not isinstance(targets, Tensor) or not isinstance(given, Tensor):
            return
        if not targets.dim() or targets.shape[:1] != given.shape[:1] or targets.device != given.device:
            return
        if given.dim() == 1 and not given.is_floating_point():
            others = _are_of_other_classes(given, targets)
        else:
            others = _are_mixed(given, targets.reshape(given.shape)) if targets.numel() == given.numel() else None
        if others is not None:
            self._errors.add(others, _error)


def _targets_of(data: Any) -> Any:
    """Return the targets of a batch, as `default_forward` does; None if it has none of its own."""
    if isinstance(data, Mapping):
        return data.get("labels")
    return data[1] if isinstance(data, list | tuple) and len(data) == 2 else None


def _are_of_other_classes(classes: Tensor, targets: Tensor) -> Tensor | None:
    """Whether examples of the same class have different targets: whole numbers, or mixed class probabilities."""
    is_soft = targets.is_floating_point()
    is_one_number = is_soft and targets.numel() == len(targets)  # as for binary cross-entropy
    if (targets.dim() != 1 + is_soft and not is_one_number) or targets.is_complex():
        return None
    in_order, order = classes.long().sort()
    rows = targets.reshape(len(targets), -1)[order]
    rows = rows.float() if is_soft else rows
    before, after = rows[:-1], rows[1:]
    is_same = (in_order[1:] == in_order[:-1])[:, None]
    differ = (
        is_same & (before != after) & (before >= 0) & (after >= 0)
    ).any()  # negative ones, such as -100, are masked
    if not is_soft:
        return differ
    if is_one_number:
        is_mixed = (rows.sum() - classes.sum()).abs() <= _ROUNDING * (1 + classes.sum().abs())
        return differ & (is_mixed | (rows == rows.round()).all())
    # A teacher's probabilities differ within a class, too. Mixing examples of a batch keeps the sum over the batch, if
    # shares are the same for all of them.
    size, num_classes = rows.shape
    counts = torch.zeros(num_classes, device=rows.device)
    counts.index_add_(0, in_order.clamp(0, num_classes - 1), torch.ones(size, device=rows.device))
    expected, sums = counts - size / num_classes, rows.sum(0) - size / num_classes
    smoothed = expected * (sums @ expected) / (expected @ expected).clamp(min=_ROUNDING)
    return differ & (((sums - smoothed).abs() <= _ROUNDING * size).all() | _are_of_two_classes(rows))


def _are_mixed(given: Tensor, targets: Tensor) -> Tensor:
    """Whether targets are other numbers than those given out, but have the same sums over the batch.

    Targets with few values, such as 0 and 1, may be smoothed: then all entries of the same value change alike.
    """
    given, targets = given.float(), targets.float()
    ends = [given == given.amin(), given == given.amax()]
    changed_alike = [(end.sum() > 1) & (_spread(targets, end) <= _ROUNDING) for end in ends]
    size = given.abs()
    others = (targets - given).abs().mean() > 0.01 * size.mean()  # more than rounding, as to bfloat16
    same_sums = ((targets.sum(0) - given.sum(0)).abs() <= _ROUNDING * (1 + size.sum(0))).all()
    same_sums = same_sums & ~(changed_alike[0] & changed_alike[1])
    return others & (same_sums | (_are_of_two_classes(targets) & ~_are_of_two_classes(given)))


def _spread(values: Tensor, where: Tensor) -> Tensor:
    """How far these values lie apart."""
    infinite = float("inf")
    return torch.where(where, values, -infinite).amax() - torch.where(where, values, infinite).amin()


def _are_of_two_classes(targets: Tensor) -> Tensor:
    """Whether examples have two classes each, and all others are equally likely: two examples mixed by their own share.

    A teacher's probabilities are not of this kind, nor are smoothed labels. It takes more than three classes to tell.
    """
    if targets.dim() != 2 or targets.shape[1] < 4:
        return torch.tensor(False, device=targets.device)
    likely = (targets > targets.amin(1, keepdim=True)).sum(1)
    return (likely <= 2).all() & ((likely == 2).sum() * 4 >= len(targets))


def _error(others: Tensor) -> ValueError | None:
    if not others:
        return None
    return ValueError(
        "these targets are not those of the batch that the loader gave out: they are of other examples, in another "
        "order, or mixed, so each loss would count for the wrong example. Leave the batch in its order, and call your "
        "loss function itself for other batches, such as validation. With mixup or CutMix, train on your own loss of "
        "the mixture, and report by loader.loss(outputs.detach(), targets), with the targets given out. If your loop "
        "makes its own targets, let transform= make them"
    )
