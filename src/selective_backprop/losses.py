"""Any loss made per-example, and the one place where weights are applied.

# N = examples in the batch; raw losses may have more dimensions (tokens, pixels, boxes)
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Reducer = Callable[[Tensor], Tensor]

REDUCERS: dict[str, Reducer] = {
    "mean": lambda raw: raw.flatten(1).mean(1),
    "sum": lambda raw: raw.flatten(1).sum(1),
    "max": lambda raw: raw.flatten(1).amax(1),
}


class PerExampleLoss:
    """A user's loss function, asked for one loss per example or for the loss to train on.

    Args:
        loss_fn: an nn loss module (its reduction does not matter), a function that takes `reduction=`, or a
            callable that returns one loss per example.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean", "sum",
            "max", or a function from (N, ...) to (N,).

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

    def per_example(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Tensor:
        """One loss per example, shape (N,)."""
        return self._reduce(self._raw(outputs, targets), num_examples)

    def with_graph(self, outputs: Any, targets: Any, num_examples: int | None = None) -> tuple[Tensor, Tensor]:
        """The losses as they are, to train on, and the detached loss of each example."""
        raw = self._raw(outputs, targets)
        return raw, self._reduce(raw.detach() if isinstance(raw, Tensor) else raw, num_examples)

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

    def _reduce(self, raw: Tensor, num_examples: int | None) -> Tensor:
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
            raw = self.reducer(raw)
        if raw.numel() != rows:
            raise ValueError(
                f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples: pass "
                f"reducer={' or '.join(map(repr, REDUCERS))}, or a function, to make them one per example"
            )
        return raw.reshape(rows)


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
    function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        takes_reduction = "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        takes_reduction = False
    return (functools.partial(loss_fn, reduction="none"), True) if takes_reduction else (loss_fn, False)
