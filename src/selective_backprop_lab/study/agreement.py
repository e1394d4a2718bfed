"""How well two scores of the same examples agree."""

from __future__ import annotations

import torch
from torch import Tensor


def overlap(a: Tensor, b: Tensor, fraction: float) -> float:
    """Compute which share of the lowest `fraction` of ids by one score is also among the lowest by the other.

    Scores that have nothing in common give `fraction`. Only ids with both scores count; ties go by id.

    >>> overlap(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 3.0, 2.0]), 0.5)
    0.5
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    if len(a) != len(b):
        raise ValueError(f"scores of the same examples are needed, got {len(a)} and {len(b)}")
    both = ~(a.isnan() | b.isnan())
    a, b = a[both], b[both]
    size = round(fraction * len(a))
    if size == 0:
        raise ValueError(f"the lowest {fraction} of {len(a)} common ids is not even one id: use a larger fraction")
    lowest_a, lowest_b = (values.argsort(stable=True)[:size] for values in (a, b))
    return int(torch.isin(lowest_a, lowest_b).sum()) / size
