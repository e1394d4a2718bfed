"""Rules for layers that keep examples apart, and for BatchNorm, which does so in eval mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.forward_reuse.gradient import RowGradient
from selective_backprop.forward_reuse.registry import Rule, rule


def by_example(*places: int, shape_at: int | None = None, count_at: int | None = None, any_dim: bool = False) -> Rule:
    """Make a rule for operations whose arguments at these places, and whose first result, have a row per example.

    Args:
        places: of the arguments; None and tensors that are shared by all examples stay as they are.
        shape_at: place of a shape that begins with the number of examples.
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
                own[place] = value if value.shape[rows.dim] == 1 != rows.whole else rows.take(value)
        if shape_at is not None:
            own[shape_at] = [rows.part, *args[shape_at][1:]]
        if count_at is not None:
            own[count_at] = rows.part
        result = func(*own, **kwargs)
        if isinstance(result, Tensor):
            return RowGradient(result, rows)
        first, *others = result
        return (RowGradient(first, rows) if first is not None else None, *others)

    return apply


rule("nll_loss_backward", "nll_loss2d_backward")(by_example(0, 1, 2))
rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")(by_example(0, 1, 2))
rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")(by_example(0, 1, 7))
rule("avg_pool2d_backward", "avg_pool3d_backward")(by_example(0, 1))
rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")(by_example(0, 1))
rule("upsample_nearest1d_backward", "upsample_nearest2d_backward")(by_example(0, shape_at=2))
rule("upsample_linear1d_backward", "upsample_bilinear2d_backward")(by_example(0, shape_at=2))
rule("convolution_backward")(by_example(0, 1))
rule("native_group_norm_backward")(by_example(0, 1, 2, 3, count_at=5))
rule("native_layer_norm_backward")(by_example(0, 1, 3, 4, any_dim=True))
rule("bmm")(by_example(0, 1))


@rule("_log_softmax_backward_data", "_softmax_backward_data")
def softmax(func: Any, gradient: Any, output: Any, dim: int, dtype: Any) -> Any:
    """Apply the rule for softmax over classes or tokens, but not over examples."""
    if dim % output.dim() == gradient.rows.dim:
        return NotImplemented
    return by_example(0, 1, any_dim=True)(func, gradient, output, dim, dtype)


@rule("_prelu_kernel_backward")
def prelu(func: Any, gradient: Any, inputs: Tensor, weight: Tensor) -> Any:
    """Apply the rule for PReLU. The gradient of its slopes also has a row per example; autograd adds them up later."""
    first, slopes = by_example(0, 1)(func, gradient, inputs, weight)
    return first, RowGradient(slopes, first.rows)


@rule("embedding_dense_backward")
def embedding(func: Any, gradient: Any, indices: Tensor, *args: Any) -> Any:
    """Sum over the selected examples: the others add nothing to the gradient of an embedding."""
    if not isinstance(gradient, RowGradient) or gradient.rows.dim >= indices.dim():
        return NotImplemented
    return func(gradient.selected, gradient.rows.take(indices), *args)


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


# In eval mode BatchNorm keeps examples apart. In train mode it couples them: the gradient of its statistics is taken
# over the selected examples alone, as if they were the batch, with the mean and deviation of the whole batch. Taking
# the statistics as constants is far from the gradient of the masked loss (cosine about 0.5 on CIFAR-10), this is not
# (0.94 to 0.99, one ResNet-20 at seven moments of its training).
rule("native_batch_norm_backward")(by_example(0, 1))


@rule("cudnn_batch_norm_backward")
def cudnn_batch_norm(func: Any, inputs: Tensor, gradient: Any, weight: Tensor, *args: Any) -> Any:
    """Use torch's own kernel, because cuDNN's saved data of the forward pass is for all rows."""
    running_mean, running_var, mean, inverse_deviation, eps, _ = args
    native = torch.ops.aten.native_batch_norm_backward.default
    return by_example(0, 1)(
        native, gradient, inputs, weight, running_mean, running_var, mean, inverse_deviation, True, eps, [True] * 3
    )
