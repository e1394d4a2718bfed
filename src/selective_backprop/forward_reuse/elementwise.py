"""Rules for operations that work element by element and are linear in the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.forward_reuse.gradient import RowGradient
from selective_backprop.forward_reuse.registry import operations, rule


@rule("neg", "clone", "detach", "alias", "_to_copy", "mul.Scalar", "div.Scalar")
def of_one(func: Any, gradient: RowGradient, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation with a single gradient to the selected rows."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        kwargs["memory_format"] = torch.preserve_format  # which fits the rows whatever it was
    return RowGradient(func(gradient.selected, *args, **kwargs), gradient.rows)


@rule(
    "mul.Tensor",
    "div.Tensor",
    "threshold_backward",
    "gelu_backward",
    "silu_backward",
    "mish_backward",
    "sigmoid_backward",
    "tanh_backward",
    "hardtanh_backward",
    "hardswish_backward",
    "hardsigmoid_backward",
    "softplus_backward",
    "leaky_relu_backward",
    "native_dropout_backward",
)
def with_others(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation to the selected rows of all arguments, also if they are broadcast."""
    gradients = [value for value in args if isinstance(value, RowGradient)]
    if func in _DIVISIONS and not isinstance(args[0], RowGradient):
        return NotImplemented  # would divide by the zeros of examples that are not selected
    ndim = max(value.dim() for value in args if isinstance(value, Tensor))
    rows = gradients[0].rows.at(gradients[0].rows.dim + ndim - gradients[0].dim())
    own: list[Any] = []
    for value in args:
        if isinstance(value, RowGradient):
            if not value.rows.at(value.rows.dim + ndim - value.dim()).same_as(rows):
                return NotImplemented
            own.append(value.selected)
        elif isinstance(value, Tensor):
            dim = rows.dim - (ndim - value.dim())
            shared = dim < 0 or (value.shape[dim] == 1 and rows.whole != 1)
            own.append(value if shared else rows.at(dim).take(value))
        else:
            own.append(value)
    return RowGradient(func(*own, **kwargs), rows)


_DIVISIONS = operations("div.Tensor")


@rule("add.Tensor", "sub.Tensor", "add_.Tensor")
def sums(func: Any, first: Any, second: Any, **kwargs: Any) -> Any:
    """Add or subtract two gradients with the same rows. Otherwise the result has all rows."""
    if not (isinstance(first, RowGradient) and isinstance(second, RowGradient)):
        return NotImplemented
    if not first.rows.same_as(second.rows) or first.shape != second.shape or func in _IN_PLACE:
        return NotImplemented
    return RowGradient(func(first.selected, second.selected, **kwargs), first.rows)


_IN_PLACE = operations("add_.Tensor")


@rule("masked_fill.Scalar", "where.self")
def chosen(func: Any, *args: Any) -> Any:
    """Set the gradient to zero where a mask says so."""
    mask, gradient, zero = (args[1], args[0], args[2]) if func in _FILLS else (args[0], args[1], args[2])
    if not isinstance(gradient, RowGradient):
        mask, gradient, zero = mask.logical_not(), zero, gradient
    if func in _FILLS:
        mask = mask.logical_not()
    is_zero = (
        zero == 0 if isinstance(zero, (int, float)) else zero.dim() == 0 and zero.device.type == "cpu" and zero == 0
    )
    if not is_zero or not isinstance(gradient, RowGradient):
        return NotImplemented
    return with_others(torch.ops.aten.mul.Tensor, gradient, mask)


_FILLS = operations("masked_fill.Scalar")
