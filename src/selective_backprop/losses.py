"""Any loss made per-example, and the one place where weights are applied.

# N = examples in the batch; raw losses may have more dimensions (tokens, pixels, boxes)
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Reducer = Callable[..., Tensor]
"""From losses (N, ...) to (N,). With a second argument it is also given the mask of those that count, such as tokens
that are no padding; None where all do."""


def _mean(raw: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return raw.flatten(1).mean(1)
    return (raw * mask).flatten(1).sum(1) / mask.flatten(1).sum(1).clamp(min=1)


REDUCERS: dict[str, Reducer] = {
    "mean": _mean,
    "sum": lambda raw: raw.flatten(1).sum(1),
    "max": lambda raw: raw.flatten(1).amax(1),
}


def mean_of_largest(count: int) -> Reducer:
    """A reducer: the mean of the `count` largest losses of an example, or of all it has if these are fewer.

    A long sequence with a few hard tokens then scores as high as a short one.

    >>> mean_of_largest(2)(torch.tensor([[0.1, 3.0, 1.0], [0.2, 0.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    tensor([2.0000, 0.2000])
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def reduce(raw: Tensor, mask: Tensor | None) -> Tensor:
        raw = raw.flatten(1)
        mask = torch.ones_like(raw, dtype=torch.bool) if mask is None else mask.flatten(1).bool()
        largest = raw.masked_fill(~mask, 0).topk(min(count, raw.shape[1])).values
        return largest.sum(1) / mask.sum(1).clamp(1, count)

    return reduce


def token_cross_entropy(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy of logits (..., V) and labels (...), with the classes last as sequence models give them.

    >>> token_cross_entropy(torch.zeros(2, 3, 8), torch.tensor([[1, 2, -100], [3, -100, -100]])).exp()
    tensor(8.)
    """
    flat = logits.float().flatten(0, -2)  # to float32, or the losses of half precision would be too coarse to rank
    losses = F.cross_entropy(
        flat, labels.flatten(), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return losses.view(labels.shape) if reduction == "none" else losses


class PerExampleLoss:
    """A user's loss function, asked for one loss per example or for the loss to train on.

    Args:
        loss_fn: an nn loss module (its reduction does not matter), a function that takes `reduction=`, or a
            callable that returns one loss per example.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean", "sum",
            "max", or a function from (N, ...) to (N,). "mean" leaves out what loss_fn ignores by its ignore_index,
            such as padding; a function does if it takes the mask as a second argument.

    >>> loss = PerExampleLoss(nn.CrossEntropyLoss())
    >>> loss.per_example(torch.zeros(2, 4), torch.tensor([0, 1])).shape
    torch.Size([2])
    """

    def __init__(self, loss_fn: Callable[..., Tensor], reducer: str | Reducer | None = None) -> None:
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, got {type(loss_fn).__name__}")
        if isinstance(reducer, str) and reducer not in REDUCERS:
            raise ValueError(f"reducer must be one of {', '.join(REDUCERS)} or a function, got {reducer!r}")
        self.loss_fn = loss_fn
        self.reducer: Reducer | None = REDUCERS[reducer] if isinstance(reducer, str) else reducer
        self._raw, self._has_reduction = _unreduced(loss_fn)
        self._ignore_index = _ignore_index(loss_fn)
        self._reducer_takes_mask = self.reducer is not None and _takes_mask(self.reducer)

    def per_example(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Tensor:
        """One loss per example, shape (N,)."""
        return self._reduce(self._raw(outputs, targets), targets, num_examples)

    def with_graph(self, outputs: Any, targets: Any, num_examples: int | None = None) -> tuple[Tensor, Tensor]:
        """The losses as they are, to train on, and the detached loss of each example."""
        raw = self._raw(outputs, targets)
        return raw, self._reduce(raw.detach() if isinstance(raw, Tensor) else raw, targets, num_examples)

    def for_training(
        self, outputs: Any, targets: Any, weights: Tensor | None, num_examples: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The scalar to call backward on, and the detached loss of each example.

        Without weights (None) it is the user's own loss, to the bit. With weights, each example's part in it is
        multiplied by its weight, on the same scale: whatever the loss divides by (examples, class weights,
        tokens that are not ignored) stays as it is.
        """
        if weights is None and self._has_reduction:
            loss = self.loss_fn(outputs, targets)
            with torch.no_grad():
                losses = self.per_example(outputs, targets, num_examples)
            return (loss if loss.dim() == 0 else loss.mean()), losses
        raw, losses = self.with_graph(outputs, targets, num_examples)
        if weights is None:
            return raw.mean(), losses
        weighted = (raw * weights.to(raw).view(-1, *[1] * (raw.dim() - 1))).mean()
        return weighted * self.scale(outputs, targets, raw), losses

    def scale(self, outputs: Any, targets: Any, raw: Tensor) -> Tensor | float:
        """How the user's reduction differs from a plain mean over the raw losses."""
        if not self._has_reduction:
            return 1.0
        with torch.no_grad():
            own = self.loss_fn(outputs, targets).mean()  # the mean of a scalar is itself
            mean = raw.detach().mean()
            return torch.where(mean == 0, torch.ones_like(mean), own / mean)

    def _reduce(self, raw: Tensor, targets: Any, num_examples: int | None) -> Tensor:
        if not isinstance(raw, Tensor):
            raise TypeError(f"loss_fn must return a tensor with one loss per example, got {type(raw).__name__}")
        if raw.dim() == 0:
            raise ValueError(
                "loss_fn returned a single number for the whole batch; one loss per example is needed: return the "
                "losses without reduction, or take a keyword argument `reduction`"
            )
        rows = len(raw) if num_examples is None else num_examples
        if len(raw) != rows:
            raise ValueError(f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples")
        if self.reducer is not None and raw.dim() > 1:
            raw = self.reducer(raw, self._mask(raw, targets)) if self._reducer_takes_mask else self.reducer(raw)
        if raw.numel() != rows:
            raise ValueError(
                f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples: pass "
                f"reducer={' or '.join(map(repr, REDUCERS))}, or a function, to make them one per example"
            )
        return raw.reshape(rows)

    def _mask(self, raw: Tensor, targets: Any) -> Tensor | None:
        """Which losses count: a loss of zero may be an ignored token or one that is certain."""
        if self._ignore_index is None or not isinstance(targets, Tensor) or targets.shape != raw.shape:
            return None
        return targets != self._ignore_index


def require_finite(losses: Tensor, ids: Tensor | None, what: str) -> None:
    """Stop at once at a NaN or infinite loss, and say which examples have it."""
    if torch.isfinite(losses).all():
        return
    rows = (~torch.isfinite(losses)).nonzero().flatten()
    values = ", ".join(f"{value}" for value in losses[rows[:5]].tolist())
    where = f"ids {ids[rows[:5]].tolist()}" if ids is not None else f"positions {rows[:5].tolist()} of the batch"
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    raise ValueError(
        f"not finite: {what} is {values} for the examples with {where}{more}. Training has diverged or these examples "
        "are broken: look at them, lower the learning rate, or clip gradients"
    )


def _unreduced(loss_fn: Callable[..., Tensor]) -> tuple[Callable[..., Tensor], bool]:
    """The loss without its reduction, and whether it had one."""
    if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
        module: Any = copy.copy(loss_fn)  # shares parameters and buffers, also after a later .to(device)
        module.reduction = "none"
        return module, True
    takes_reduction = "reduction" in _parameters(loss_fn)
    return (functools.partial(loss_fn, reduction="none"), True) if takes_reduction else (loss_fn, False)


def _ignore_index(loss_fn: Callable[..., Tensor]) -> int | None:
    """The target whose loss does not count, by the loss module's attribute or the function's default."""
    parameter = _parameters(loss_fn).get("ignore_index")
    default = parameter.default if parameter is not None else None
    found = getattr(loss_fn, "ignore_index", default)
    return found if isinstance(found, int) else None


def _takes_mask(reducer: Reducer) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in _parameters(reducer).values() if p.kind in positional and p.default is p.empty]
    return len(required) > 1


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}
