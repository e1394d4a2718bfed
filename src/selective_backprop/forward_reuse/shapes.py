"""Rules for operations that move rows, multiply by matrices, or add rows up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from selective_backprop.forward_reuse.gradient import RowGradient
from selective_backprop.forward_reuse.registry import rule


@rule("view", "_unsafe_view", "reshape")
def view(func: Any, gradient: RowGradient, sizes: Sequence[int]) -> Any:
    """View the gradient in another shape, if the batch stays within one dimension."""
    known = -math.prod(sizes)
    whole = [gradient.numel() // known if size == -1 else size for size in sizes] if -1 in sizes else list(sizes)
    rows = gradient.rows.viewed(list(gradient.shape), whole)
    if rows is None:
        return NotImplemented
    whole[rows.dim] = rows.part
    return RowGradient(gradient.selected.reshape(whole), rows)


# Pooling to one pixel in channels-last ends in as_strided, whose gradient is copied into zeros: these three.


@rule("new_zeros")
def zeros(func: Any, gradient: RowGradient, sizes: Sequence[int], **kwargs: Any) -> Any:
    """Make a flat gradient of zeros with the same rows, if it has as many numbers as this one."""
    rows = gradient.rows.viewed(list(gradient.shape), list(sizes)) if list(sizes) == [gradient.numel()] else None
    return RowGradient(gradient.selected.new_zeros(rows.part, **kwargs), rows) if rows is not None else NotImplemented


@rule("as_strided")
def as_strided(func: Any, gradient: RowGradient, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
    """Handle as_strided if it is a plain view of contiguous memory. Strides of dimensions of size 1 do not matter."""
    expected: list[int] = []
    step = 1
    for size in reversed(sizes):
        expected.insert(0, step)
        step *= size
    plain = all(size == 1 or a == b for size, a, b in zip(sizes, strides, expected, strict=True))
    if not plain or offset or step != gradient.numel() or not gradient.selected.is_contiguous():
        return NotImplemented
    seen = view(func, gradient, sizes)
    return seen if seen is NotImplemented else RowGradient(seen.selected, seen.rows, is_view=True)


@rule("copy_")
def copied(func: Any, target: Any, source: Any, *args: Any) -> Any:
    """Copy selected rows into the same rows of another gradient."""
    if not isinstance(target, RowGradient) or not isinstance(source, RowGradient):
        return NotImplemented
    if not target.rows.same_as(source.rows):
        return NotImplemented
    target.selected.copy_(source.selected)
    return target


@rule("t", "transpose.int", "permute")
def permuted(func: Any, gradient: RowGradient, *args: Any) -> Any:
    """Permute dimensions. The batch moves with its dimension."""
    if len(args) == 1:
        order = [dim % gradient.dim() for dim in args[0]]
    else:
        order = list(range(gradient.dim()))
        a, b = (dim % gradient.dim() for dim in args) if args else (0, gradient.dim() - 1)
        order[a], order[b] = order[b], order[a]
    rows = gradient.rows.at(order.index(gradient.rows.dim))
    return RowGradient(gradient.selected.permute(order), rows)


@rule("unsqueeze")
def unsqueeze(func: Any, gradient: RowGradient, dim: int) -> Any:
    """Add a dimension of size 1."""
    dim %= gradient.dim() + 1
    rows = gradient.rows.at(gradient.rows.dim + (dim <= gradient.rows.dim))
    return RowGradient(gradient.selected.unsqueeze(dim), rows)


@rule("squeeze.dim", "squeeze.dims")
def squeeze(func: Any, gradient: RowGradient, dims: int | Sequence[int]) -> Any:
    """Remove dimensions of size 1."""
    gone = [dim % gradient.dim() for dim in ([dims] if isinstance(dims, int) else dims)]
    gone = [dim for dim in gone if gradient.shape[dim] == 1]
    if gradient.rows.dim in gone:
        return NotImplemented
    rows = gradient.rows.at(gradient.rows.dim - sum(dim < gradient.rows.dim for dim in gone))
    return RowGradient(gradient.selected.squeeze(tuple(gone)), rows)


@rule("expand")
def expand(func: Any, gradient: RowGradient, sizes: Sequence[int], **kwargs: Any) -> Any:
    """Expand dimensions that have no examples in them."""
    rows = gradient.rows.at(gradient.rows.dim + len(sizes) - gradient.dim())
    if sizes[rows.dim] not in (-1, rows.whole):
        return NotImplemented
    own = [rows.part if i == rows.dim else size for i, size in enumerate(sizes)]
    return RowGradient(gradient.selected.expand(own), rows)


@rule("slice.Tensor", "constant_pad_nd", "roll")
def elsewhere(func: Any, gradient: RowGradient, *args: Any) -> Any:
    """Apply an operation along dimensions that have no examples in them."""
    name = func._schema.name
    if name == "aten::slice":
        touched = {(args[0] if args else 0) % gradient.dim()}
    elif name == "aten::roll":
        touched = {dim % gradient.dim() for dim in (args[1] if len(args) > 1 else range(gradient.dim()))}
    else:
        touched = {gradient.dim() - 1 - i // 2 for i, pad in enumerate(args[0]) if pad}
    if gradient.rows.dim in touched:
        return NotImplemented
    return RowGradient(func(gradient.selected, *args), gradient.rows)


@rule("select.int", "unbind.int")
def select(func: Any, gradient: RowGradient, dim: int = 0, *index: int) -> Any:
    """Select one index of another dimension, or all of them."""
    dim %= gradient.dim()
    if dim == gradient.rows.dim:
        return NotImplemented
    rows = gradient.rows.at(gradient.rows.dim - (dim < gradient.rows.dim))
    result = func(gradient.selected, dim, *index)
    return RowGradient(result, rows) if isinstance(result, Tensor) else [RowGradient(part, rows) for part in result]


@rule("split.Tensor", "split_with_sizes")
def split(func: Any, gradient: RowGradient, sizes: Any, dim: int = 0) -> Any:
    """Split along another dimension."""
    if dim % gradient.dim() == gradient.rows.dim:
        return NotImplemented
    return [RowGradient(part, gradient.rows) for part in func(gradient.selected, sizes, dim)]


@rule("slice_backward")
def slice_backward(func: Any, gradient: RowGradient, sizes: Sequence[int], dim: int, *args: Any) -> Any:
    """Undo a slice of another dimension: put the gradient back into the shape before it."""
    rows = gradient.rows
    if dim % gradient.dim() == rows.dim:
        return NotImplemented
    return RowGradient(
        func(gradient.selected, [*sizes[: rows.dim], rows.part, *sizes[rows.dim + 1 :]], dim, *args), rows
    )


@rule("select_backward")
def select_backward(func: Any, gradient: RowGradient, sizes: Sequence[int], dim: int, index: int) -> Any:
    """Undo the selection of one index of another dimension: put the gradient back into the shape before it."""
    dim %= len(sizes)
    rows = gradient.rows.at(gradient.rows.dim + (dim <= gradient.rows.dim))
    return RowGradient(
        func(gradient.selected, [*sizes[: rows.dim], rows.part, *sizes[rows.dim + 1 :]], dim, index), rows
    )


@rule("cat", "stack")
def cat(func: Any, parts: Sequence[Any], dim: int = 0) -> Any:
    """Join gradients with the same rows along another dimension."""
    if not all(isinstance(part, RowGradient) for part in parts):
        return NotImplemented
    rows, stacks = parts[0].rows, func._schema.name == "aten::stack"
    dim %= parts[0].dim() + stacks
    if not all(part.rows.same_as(rows) for part in parts) or (dim == rows.dim and not stacks):
        return NotImplemented
    place = rows.at(rows.dim + (dim <= rows.dim)) if stacks else rows
    return RowGradient(func([part.selected for part in parts], dim), place)


@rule("sum.dim_IntList", "sum")
def added_up(func: Any, gradient: RowGradient, dims: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """Sum the gradient. Over examples, those not selected add nothing; over other dimensions, rows stay rows."""
    every = list(range(gradient.dim()))
    gone = {dim % gradient.dim() for dim in (dims or every)}
    total = gradient.selected.sum(sorted(gone), keepdim=keepdim, **kwargs)
    if gradient.rows.dim in gone:
        return total
    before = 0 if keepdim else sum(dim < gradient.rows.dim for dim in gone)
    return RowGradient(total, gradient.rows.at(gradient.rows.dim - before))


@rule("mm")
def mm(func: Any, first: Any, second: Any) -> Any:
    """Multiply matrices. Rows stay rows if the batch is an outer dimension. In a sum over it, others add nothing."""
    if isinstance(first, RowGradient):
        if isinstance(second, RowGradient):
            return NotImplemented
        if first.rows.dim == 0:
            return RowGradient(func(first.selected, second), first.rows)
        return func(first.selected, first.rows.at(0).take(second))
    if second.rows.dim == 1:
        return RowGradient(func(first, second.selected), second.rows)
    return func(second.rows.at(1).take(first), second.selected)
