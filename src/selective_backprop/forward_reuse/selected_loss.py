"""The loss of selected candidates, from a forward pass over all of them. The backward pass runs on the selected ones.

# N = candidates, K = selected
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from selective_backprop.forward_reuse.row_gradients import weighted_sum
from selective_backprop.losses import PerExampleLoss
from selective_backprop.types import Selection

_log = logging.getLogger("selective_backprop")


def selected_loss(
    loss: PerExampleLoss, outputs: Any, targets: Any, raw: Tensor, selection: Selection, *, by_rows: bool = True
) -> Tensor:
    """Compute the weighted mean loss of the selected candidates, as if they alone were the batch.

    Args:
        loss: the user's loss.
        outputs, targets: outputs and targets of all N candidates.
        raw: (N, ...) losses of all candidates, with their graph.
        selection: the selected candidates, with their weights.
        by_rows: run the backward pass on the selected rows alone. If False, it runs on all rows, with zeros for the
            others.
    """
    if not len(selection.positions):
        return raw.sum() * 0
    positions = selection.positions.to(raw.device, non_blocking=True)
    weights = selection.weights.to(raw.device, non_blocking=True)
    index, place = torch.unique(positions, return_inverse=True)  # an example drawn twice gets the sum of both weights
    weights = torch.zeros(len(index), device=raw.device).index_add_(0, place, weights)
    entries = len(positions) * (raw[0].numel() if len(raw) else 1)
    with torch.no_grad():
        chosen = [_rows(value, positions, len(raw)) for value in (outputs, targets)]
        weights = weights * loss.scale(chosen[0], chosen[1], raw.detach().index_select(0, positions)) / entries
    if by_rows:
        return weighted_sum(raw, index, weights)
    mask = torch.zeros(len(raw), device=raw.device).index_copy_(0, index, weights.float()).to(raw)
    return (raw * mask.view(-1, *[1] * (raw.dim() - 1))).sum()


def _rows(value: Any, positions: Tensor, total: int) -> Any:
    """Take the selected rows of outputs or targets, which may be dicts or tuples of tensors."""

    def take(part: Any) -> Any:
        has_rows = isinstance(part, Tensor) and part.dim() > 0 and len(part) == total
        return part.detach().index_select(0, positions.to(part.device)) if has_rows else part

    return torch.utils._pytree.tree_map(take, value)


def can_reuse_rows(losses: Tensor) -> bool:
    """Whether row gradients can go back from these losses. A compiled backward pass cannot take them; this is logged.

    losses: with their graph.
    """
    seen: set[Any] = set()
    waiting: list[Any] = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith("CompiledFunction"):
            _log.warning(
                "forward reuse: a part of your model is compiled, so the backward pass goes over all candidates. "
                "Results are exact, but it is not faster. For a faster backward pass, do not compile the model"
            )
            return False
        seen.add(node)
        waiting += [inner for inner, _ in node.next_functions]
    return True
