"""Gradients of selected examples alone, from one forward pass over all of them. Importing this registers the rules."""

from selective_backprop.forward_reuse import elementwise, layers, shapes  # noqa: F401  registers the rules
from selective_backprop.forward_reuse.gradient import RowGradient, weighted_sum

__all__ = ["RowGradient", "weighted_sum"]
