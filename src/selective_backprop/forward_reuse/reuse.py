"""Forward reuse: one pass of the model serves selection and training, and the backward pass runs on what was selected.

# N = candidates, K = selected
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.forward_reuse.row_gradients import weighted_sum
from selective_backprop.loader.runner import Selector
from selective_backprop.loader.stats import Stats
from selective_backprop.losses import PerExampleLoss
from selective_backprop.scorers import TrainingPassScorer
from selective_backprop.types import Batch, Selection

_log = logging.getLogger("selective_backprop")


class ForwardReuse:
    """Selects in the user's call of `loader.loss`, among the candidates of the batch under way."""

    def __init__(self, selector: Selector, model: nn.Module, loss: PerExampleLoss, stats: Stats) -> None:
        self._selector, self._model, self._loss, self._stats = selector, model, loss, stats
        self._by_rows: bool | None = None

    def loss(self, batch: Batch, outputs: Any, targets: Any, epoch: int) -> tuple[Tensor, Tensor, Batch]:
        """The loss to train on, the loss of every candidate, and the batch with zero weight for those not selected."""
        scorer, size = self._selector.scorer, len(batch)
        assert isinstance(scorer, TrainingPassScorer)
        found = self._loss.evaluate(outputs, targets, size)
        raw, losses = found.raw, found.losses
        selection = self._selector.choose(scorer.of_outputs(outputs, targets, losses), batch.ids, epoch)
        count = len(selection.positions)
        self._stats.trained -= size - count  # all were counted when they were given out
        self._stats.reused += count
        if count == size and bool((selection.weights == 1).all()):
            return found.own(), losses, batch
        if self._by_rows is None:
            self._by_rows = can_reuse_rows(self._model)
        loss = selected_loss(self._loss, outputs, targets, raw, selection, by_rows=self._by_rows)
        # In a mean over all candidates these weights give the same loss, should it be asked for again.
        weights = torch.zeros(size).index_add_(0, selection.positions, selection.weights * (size / max(1, count)))
        return loss, losses, Batch(batch.data, batch.ids, weights, selection.probabilities)


def selected_loss(
    loss: PerExampleLoss, outputs: Any, targets: Any, raw: Tensor, selection: Selection, *, by_rows: bool = True
) -> Tensor:
    """The weighted mean loss of the selected candidates, as if they alone had been the batch.

    Args:
        loss: the user's.
        outputs, targets: of all N candidates.
        raw: (N, ...) losses of these, with their graph.
        selection: which of them, with their weights.
        by_rows: run the backward pass on the selected rows alone; otherwise on all, those not selected with zeros.
    """
    if not len(selection.positions):
        return raw.sum() * 0
    positions = selection.positions.to(raw.device, non_blocking=True)
    weights = selection.weights.to(raw.device, non_blocking=True)
    index, place = torch.unique(positions, return_inverse=True)  # drawn twice: once, with both weights
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
    """The selected rows of outputs or targets, also where they are dicts or tuples of tensors."""

    def take(part: Any) -> Any:
        has_rows = isinstance(part, Tensor) and part.dim() > 0 and len(part) == total
        return part.detach().index_select(0, positions.to(part.device)) if has_rows else part

    return torch.utils._pytree.tree_map(take, value)


def can_reuse_rows(model: nn.Module) -> bool:
    """Whether row gradients can go through the model; a compiled backward pass takes none, which is told once."""
    compiled = any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
    if compiled:
        _log.warning(
            "forward reuse: the model is compiled, so the backward pass goes over all candidates: exact, not faster"
        )
    return not compiled
