"""Rules for operations of the backward pass: how each works on the selected rows. Importing this registers them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selective_backprop.forward_reuse.gradient import RowGradient, Rule, rule
from selective_backprop.forward_reuse.rows import Rows

_aten = torch.ops.aten

# ---- element by element


@rule("neg clone detach alias _to_copy mul.Scalar div.Scalar")
def of_one(func: Any, gradient: RowGradient, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation with a single gradient to the selected rows."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        kwargs["memory_format"] = torch.preserve_format  # which fits the rows whatever it was
    return RowGradient(func(gradient.selected, *args, **kwargs), gradient.rows)


@rule(
    "mul.Tensor div.Tensor masked_fill.Scalar threshold_backward gelu_backward silu_backward mish_backward "
    "sigmoid_backward tanh_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward "
    "leaky_relu_backward native_dropout_backward"
)
def with_others(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation to the selected rows of all arguments, also if they are broadcast."""
    if not isinstance(args[0], RowGradient) and func is _aten.div.Tensor:
        return NotImplemented  # would divide by the zeros of examples that are not selected
    if func is _aten.masked_fill.Scalar and args[2] != 0:
        return NotImplemented
    first = next(value for value in args if isinstance(value, RowGradient))
    ndim = max(value.dim() for value in args if isinstance(value, Tensor))
    rows = first.rows.at(first.rows.dim + ndim - first.dim())
    own: list[Any] = []
    for value in args:
        if isinstance(value, RowGradient):
            if not value.rows.at(value.rows.dim + ndim - value.dim()).same_as(rows):
                return NotImplemented
            own.append(value.selected)
        elif isinstance(value, Tensor):
            dim = rows.dim - (ndim - value.dim())
            own.append(value if dim < 0 or value.shape[dim] == 1 else rows.at(dim).take(value))
        else:
            own.append(value)
    return RowGradient(func(*own, **kwargs), rows)


@rule("add.Tensor sub.Tensor")
def sums(func: Any, first: Any, second: Any, **kwargs: Any) -> Any:
    """Add or subtract two gradients with the same rows. Otherwise the result has all rows."""
    if not _have_same_rows(first, second) or first.shape != second.shape:
        return NotImplemented
    return RowGradient(func(first.selected, second.selected, **kwargs), first.rows)


def _have_same_rows(first: Any, *others: Any) -> bool:
    gradients = isinstance(first, RowGradient) and all(isinstance(other, RowGradient) for other in others)
    return gradients and all(other.rows.same_as(first.rows) for other in others)


# ---- other shapes


@rule("view _unsafe_view reshape")
def view(func: Any, gradient: RowGradient, sizes: Sequence[int]) -> Any:
    """View the gradient in another shape, if the batch stays within one dimension."""
    whole = [gradient.numel() // -math.prod(sizes) if size == -1 else size for size in sizes]
    rows = gradient.rows.viewed(list(gradient.shape), whole)
    if rows is None:
        return NotImplemented
    return RowGradient(gradient.selected.reshape(rows.sized(whole, rows.part)), rows, is_view=True)


@rule(
    "t transpose.int permute unsqueeze squeeze.dim squeeze.dims slice.Tensor select.int unbind.int split.Tensor "
    "split_with_sizes expand"
)
def moved(func: Any, gradient: RowGradient, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation that makes a view. A tensor with a stride only along the examples tells where they go."""
    strides = [int(dim == gradient.rows.dim) for dim in range(gradient.dim())]
    seen = func(torch.empty_strided(gradient.shape, strides, device="meta"), *args, **kwargs)
    places = [_place_after(one, gradient.rows) for one in ([seen] if isinstance(seen, Tensor) else seen)]
    if None in places:
        return NotImplemented
    if func is _aten.expand.default:
        args = (places[0].sized(args[0], places[0].part), *args[1:])  # type: ignore[union-attr]
    found = func(gradient.selected, *args, **kwargs)
    if isinstance(found, Tensor):
        return RowGradient(found, places[0], is_view=True)  # type: ignore[arg-type]
    return [RowGradient(part, rows, is_view=True) for part, rows in zip(found, places, strict=True)]  # type: ignore[arg-type]


def _place_after(seen: Tensor, rows: Rows) -> Rows | None:
    dims = [dim for dim in range(seen.dim()) if seen.stride(dim) == 1 and seen.shape[dim] == rows.whole]
    return rows.at(dims[0]) if len(dims) == 1 and not seen.storage_offset() else None


@rule("constant_pad_nd")
def padded(func: Any, gradient: RowGradient, sizes: Sequence[int], *value: Any) -> Any:
    """Pad or cut other dimensions than that of the examples."""
    if any(value) or len(sizes) > 2 * (gradient.dim() - 1 - gradient.rows.dim):
        return NotImplemented
    return RowGradient(func(gradient.selected, sizes), gradient.rows)


@rule("slice_backward select_backward")
def put_back(func: Any, gradient: RowGradient, sizes: Sequence[int], dim: int, *args: Any) -> Any:
    """Undo a slice or a choice of another dimension: put the gradient back into the shape before it."""
    selects, dim = func is _aten.select_backward.default, dim % len(sizes)
    if dim == gradient.rows.dim and not selects:
        return NotImplemented
    rows = gradient.rows.at(gradient.rows.dim + (selects and dim <= gradient.rows.dim))
    return RowGradient(func(gradient.selected, rows.sized(list(sizes), rows.part), dim, *args), rows)


@rule("cat stack")
def joined(func: Any, parts: Sequence[Any], dim: int = 0) -> Any:
    """Join gradients with the same rows along another dimension."""
    if not _have_same_rows(*parts):
        return NotImplemented
    rows, stacks = parts[0].rows, func is _aten.stack.default
    dim %= parts[0].dim() + stacks
    if dim == rows.dim and not stacks:
        return NotImplemented
    return RowGradient(func([part.selected for part in parts], dim), rows.at(rows.dim + (stacks and dim <= rows.dim)))


# ---- sums over examples, in which those not selected add nothing


@rule("sum.dim_IntList sum")
def added_up(func: Any, gradient: RowGradient, dims: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """Sum the gradient. Over other dimensions than that of the examples, rows stay rows."""
    gone = {dim % gradient.dim() for dim in (dims or range(gradient.dim()))}
    total = gradient.selected.sum(sorted(gone), keepdim=keepdim, **kwargs)
    if gradient.rows.dim in gone:
        return total
    before = 0 if keepdim else sum(dim < gradient.rows.dim for dim in gone)
    return RowGradient(total, gradient.rows.at(gradient.rows.dim - before))


@rule("mm")
def mm(func: Any, first: Any, second: Any) -> Any:
    """Multiply matrices. Rows stay rows if the batch is an outer dimension."""
    if isinstance(first, RowGradient):
        if isinstance(second, RowGradient):
            return NotImplemented
        if first.rows.dim == 0:
            return RowGradient(func(first.selected, second), first.rows)
        return func(first.selected, first.rows.at(0).take(second))
    if second.rows.dim == 1:
        return RowGradient(func(first, second.selected), second.rows)
    return func(second.rows.at(1).take(first), second.selected)


@rule("embedding_dense_backward")
def embedding(func: Any, gradient: Any, indices: Tensor, *args: Any) -> Any:
    """Add up what the selected examples give to the words."""
    if not isinstance(gradient, RowGradient) or gradient.rows.dim >= indices.dim():
        return NotImplemented
    return func(gradient.selected, gradient.rows.take(indices), *args)


# ---- layers that keep examples apart


def by_example(*places: int, count_at: int | None = None, any_dim: bool = False) -> Rule:
    """Make a rule for operations whose arguments at these places, and whose first result, have a row per example.

    Args:
        places: of the arguments; None and tensors that are shared by all examples stay as they are.
        count_at: place of the number of examples.
        any_dim: whether the batch may be in another dimension than the first.
    """

    def apply(func: Any, *args: Any, **kwargs: Any) -> Any:
        rows = next(value for value in args if isinstance(value, RowGradient)).rows
        if rows.dim != 0 and not any_dim:
            return NotImplemented
        own = list(args)
        for place, value in enumerate(args):
            if isinstance(value, RowGradient):
                if place not in places or not value.rows.same_as(rows):
                    return NotImplemented
                own[place] = value.selected
            elif place in places and isinstance(value, Tensor) and value.dim() > rows.dim:
                own[place] = value if value.shape[rows.dim] == 1 else rows.take(value)
        if count_at is not None:
            own[count_at] = rows.part
        result = func(*own, **kwargs)
        if isinstance(result, Tensor):
            return RowGradient(result, rows)
        return (None if result[0] is None else RowGradient(result[0], rows), *result[1:])

    return apply


rule("max_pool2d_with_indices_backward")(by_example(0, 1, 7))
rule("avg_pool2d_backward _adaptive_avg_pool2d_backward convolution_backward bmm")(by_example(0, 1))
rule("native_group_norm_backward")(by_example(0, 1, 2, 3, count_at=5))
rule("native_layer_norm_backward")(by_example(0, 1, 3, 4, any_dim=True))


@rule("_log_softmax_backward_data _softmax_backward_data")
def softmax(func: Any, gradient: Any, output: Any, dim: int, dtype: Any) -> Any:
    """Apply the rule for softmax over classes or tokens, but not over examples."""
    if dim % output.dim() == gradient.rows.dim:
        return NotImplemented
    return by_example(0, 1, any_dim=True)(func, gradient, output, dim, dtype)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention(func: Any, *args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Any:
    """Compute the gradients of queries, keys and values on the selected rows."""
    gradient = args[0]
    if not isinstance(gradient, RowGradient) or gradient.rows.dim != 0:
        return NotImplemented
    rows = gradient.rows
    own = [gradient.selected, *(rows.take(value) for value in args[1:6])]
    if attn_mask is not None and attn_mask.dim() == 4 and attn_mask.shape[0] == rows.whole:
        attn_mask = rows.take(attn_mask)
    return tuple(RowGradient(part, rows) for part in func(*own, *args[6:], attn_mask=attn_mask, **kwargs))


@rule("native_batch_norm_backward")
def batch_norm(func: Any, *args: Any) -> Any:
    """Apply the rule for BatchNorm in eval mode. In train mode its statistics couple the examples."""
    is_training = args[7]
    return NotImplemented if is_training else by_example(0, 1)(func, *args)
