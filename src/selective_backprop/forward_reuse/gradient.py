"""A gradient that is zero for most examples, and is computed only for the others.

# N = examples of the batch, K = selected
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from selective_backprop.forward_reuse.rows import Rows

_log = logging.getLogger("selective_backprop")

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
"""By operation of the backward pass: a function that applies it to selected rows, or returns NotImplemented."""
without_rule: set[str] = set()
"""Operations without a rule that this process has met. They go over all examples, and the log names each once."""


def rule(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations, each "name" or "name.overload". Names that this torch lacks are left out."""

    def register(function: Rule) -> Rule:
        for name in names.split():
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if operation is not None:
                RULES[operation] = function
        return function

    return register


class RowGradient(Tensor):
    """Looks to autograd like a tensor with all N examples, but stores only the rows of the K selected ones.

    An operation that is linear in the gradient and treats examples apart gives, on those rows, what it would give
    on all: the others are zero. Operations without a rule get the gradient with all its rows, which is as exact
    and not faster.
    """

    selected: Tensor
    rows: Rows
    is_view: bool
    """Whether it may share its values with another gradient."""

    @staticmethod
    def __new__(cls, values: Tensor, rows: Rows, is_view: bool = False) -> RowGradient:
        self: RowGradient = Tensor._make_wrapper_subclass(
            cls, rows.sized(values.shape, rows.whole), dtype=values.dtype, device=values.device
        )
        self.selected, self.rows, self.is_view = values, rows, is_view
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"RowGradient({tuple(self.shape)}, {len(self.rows.index)} of {self.rows.total} examples)"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = RULES[func](func, *args, **kwargs) if func in RULES else NotImplemented
        if result is not NotImplemented:
            return result
        if str(func) not in without_rule:
            without_rule.add(str(func))
            _log.info("forward reuse: %s goes over all examples of the batch, selected or not: exact, not faster", func)
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
    return value.rows.spread(value.selected) if isinstance(value, RowGradient) else value


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows, place: Tensor) -> Tensor:
        ctx.rows, ctx.place = rows, place
        return values.index_select(0, rows.index[place])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        values = grad.new_zeros(len(ctx.rows.index), *grad.shape[1:]).index_add_(0, ctx.place, grad)
        return RowGradient(values, ctx.rows), None, None


def take(values: Tensor, rows: Rows, place: Tensor) -> Tensor:
    """Take the rows rows.index[place] of a tensor. The backward pass runs on them alone.

    >>> values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> take(values, Rows(torch.tensor([0, 2]), total=3), torch.tensor([0, 1, 1])).tolist()
    [1.0, 3.0, 3.0]
    """
    taken: Tensor = _Taken.apply(values, rows, place)  # type: ignore[no-untyped-call]
    return taken
