"""Finds the size of candidate batches at which scoring is fastest. It may differ from the training batch size."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from selective_backprop.advice.timing import medians, time_in_turns
from selective_backprop.batches.layout import Column, Layout, count_rows
from selective_backprop.types import Candidates, Scorer, Task

_MULTIPLES = (1, 2, 4, 8)
_MAX_BYTES = 64 * 2**20  # of one batch's data: what a network makes of it on its way takes many times as much


def seconds_by_batch_size(
    scorer: Scorer, batches: list[Any], task: Task, device: torch.device, seconds: float
) -> dict[int, float]:
    """Measure seconds per candidate for batches of 1, 2, 4 and 8 times the size of the first, if data is enough.

    Batches of different shapes, such as texts of different lengths without `pad`, cannot be joined: only the size of
    the first is measured then.
    """
    layout, size = Layout.of(batches[0]), count_rows(batches[0])
    columns = [layout.columns(batch) for batch in batches]
    rows = sum(count_rows(batch) for batch in batches)
    num_bytes = sum(column.nbytes for column in columns[0] if isinstance(column, Tensor))
    actions = {}
    shapes = {tuple(c.shape[1:] if isinstance(c, Tensor) else () for c in parts) for parts in columns}
    if len(shapes) > 1:
        columns, rows = columns[:1], size
    for multiple in _MULTIPLES:
        if multiple * size > rows or (multiple > 1 and multiple * num_bytes > _MAX_BYTES):
            break
        joined = [_join(parts)[: multiple * size] for parts in zip(*columns, strict=True)]
        candidates = Candidates(layout.batch(joined), None, multiple * size)
        try:
            scorer.score(candidates, task)
        except torch.OutOfMemoryError:
            break
        actions[multiple * size] = functools.partial(_score, scorer, candidates, task)
    times = medians(time_in_turns(actions, device, seconds))
    return {size: taken / size for size, taken in times.items()}


def _score(scorer: Scorer, candidates: Candidates, task: Task, turn: int) -> Tensor:
    return scorer.score(candidates, task)


def _join(parts: tuple[Column, ...]) -> Column:
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat(tensors) if tensors else [entry for part in parts for entry in part]
