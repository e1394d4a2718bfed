"""Forward reuse: one forward pass serves selection and training."""

from selective_backprop.forward_reuse.selective_loss import Counts, SelectiveLoss

__all__ = ["Counts", "SelectiveLoss"]
