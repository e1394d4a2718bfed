"""A gradient that is zero for most examples, and is computed only for the others.

# N = examples of the batch, K = selected
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from selective_backprop.forward_reuse.registry import RULES
from selective_backprop.forward_reuse.rows import Rows

_log = logging.getLogger("selective_backprop")
without_rule: set[str] = set()
"""Operations without a rule that this process has met. They go over all examples, and the log names each once."""


class RowGradient(Tensor):
    """Looks to autograd like a tensor with all N examples, but stores only the rows of the K selected ones.

    An operation that is linear in the gradient and treats examples apart gives, on those rows, what it would give
    on all: the others are zero. Operations without a rule get the gradient with all its rows, which is as exact
    and not faster.
    """

    selected: Tensor
    rows: Rows
    is_view: bool
    """Whether it shares its values with another gradient."""

    @staticmethod
    def __new__(cls, values: Tensor, rows: Rows, is_view: bool = False) -> RowGradient:
        self: RowGradient = Tensor._make_wrapper_subclass(
            cls, rows.whole_shape(values), dtype=values.dtype, device=values.device
        )
        self.selected, self.rows, self.is_view = values, rows, is_view
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"RowGradient({tuple(self.shape)}, {len(self.rows.index)} of {self.rows.total} examples)"

    def whole(self) -> Tensor:
        """Return the gradient with all N rows."""
        return self.rows.spread(self.selected)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            result = rule(func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        _tell_once(str(func))
        result = func(*tree_map(_whole, args), **tree_map(_whole, kwargs))
        if func._schema.is_mutable and isinstance(args[0], RowGradient):
            return args[0]._become(result)
        return result

    def _become(self, whole: Tensor) -> RowGradient:
        """Turn into a gradient with all rows, as the result of an in-place operation without a rule."""
        if self.is_view:
            raise RuntimeError(
                "forward reuse cannot follow an operation in place on a view of a gradient: leave it out"
            )
        self.selected, self.rows = whole, Rows(torch.arange(len(whole), device=whole.device), len(whole))
        return self


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, RowGradient) else value


def _tell_once(name: str) -> None:
    if name not in without_rule:
        without_rule.add(name)
        _log.info("forward reuse: %s goes over all examples of the batch, selected or not: exact, not faster", name)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(index, weights)
        ctx.shape = losses.shape
        selected = losses.index_select(0, index)
        return (selected * _over_rows(weights, selected)).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, weights = ctx.saved_tensors
        values = grad * _over_rows(weights, grad.new_empty(len(index), *ctx.shape[1:]))
        values = values.expand(len(index), *ctx.shape[1:])
        return RowGradient(values, Rows(index, ctx.shape[0])), None, None


def _over_rows(weights: Tensor, like: Tensor) -> Tensor:
    return weights.to(like).view(-1, *[1] * (like.dim() - 1))


def weighted_sum(losses: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Compute sum(weights * losses[index]). Its backward pass runs on these examples alone.

    Args:
        losses: (N, ...) with their graph.
        index: (K,) int64, each example once.
        weights: (K,) of each.

    >>> losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> weighted_sum(losses, torch.tensor([0, 2]), torch.tensor([0.5, 0.5])).item()
    2.0
    """
    result: Tensor = _Selected.apply(losses, index, weights)  # type: ignore[no-untyped-call]
    return result
