"""Token-level selection: train only on the tokens of a batch that carry the loss.

# N = examples in the batch, T = tokens of an example
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop import functional
from selective_backprop.inference import NoTrace, device_of, unwrap
from selective_backprop.losses import PerExampleLoss
from selective_backprop.types import Batch, Forward


class TokenShare:
    """Gives weight to the tokens of a training batch with the highest losses, and none to the others.

    This saves no compute: the model has seen all tokens by then, and the backward pass takes as long as ever. It only
    changes
    what is learned. The loss is the mean over the tokens that are kept.

    Args:
        share: share of a batch's tokens to train on. Ignored ones, such as padding, do not count.
        reference: rank tokens by their loss minus that of this model, which is low for tokens that are noise; None to
            rank by the loss. The reference costs a forward pass of its own.
        forward: how a batch goes through the model.
        loss: the user's loss.

    Lin et al. 2024, https://arxiv.org/abs/2404.07965.
    """

    def __init__(self, share: float, reference: nn.Module | None, forward: Forward, loss: PerExampleLoss) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"token_share must be in (0, 1], got {share}")
        if reference is not None and not isinstance(reference, nn.Module):
            raise TypeError(f"token_reference must be a model, got {type(reference).__name__}")
        self.share, self._forward, self._loss = share, forward, loss
        self._reference = None if reference is None else unwrap(reference)
        self._guard = None if self._reference is None else NoTrace(self._reference, "eval")

    def weights(self, raw: Tensor, targets: Any, batch: Batch) -> Tensor:
        """Return the weight of each token, of the shape of the raw losses. Their mean over tokens that count is 1."""
        if raw.dim() < 2:
            raise ValueError(
                f"token_share= needs a loss of each token, but loss_fn returned losses of shape {tuple(raw.shape)}, "
                "one per example: use sb.token_cross_entropy, with reducer='mean', or leave out token_share="
            )
        counts = self._loss.counted(raw, targets)
        mask = torch.ones_like(raw, dtype=torch.bool) if counts is None else counts
        scores = raw if self._reference is None else raw - self._of_reference(raw, batch)
        return functional.highest_of_tokens(scores, mask, self.share).to(raw)

    def _of_reference(self, raw: Tensor, batch: Batch) -> Tensor:
        reference, guard = self._reference, self._guard
        assert reference is not None and guard is not None
        if device_of(reference) != raw.device:
            raise ValueError(
                f"token_reference is on {device_of(reference)}, but the losses are on {raw.device}: move it there"
            )
        with guard():
            losses = self._loss.unreduced(*self._forward(reference, batch.data))
        if losses.shape != raw.shape:
            raise ValueError(
                f"token_reference gives losses of shape {tuple(losses.shape)}, but the model's have "
                f"{tuple(raw.shape)}: it must read the same tokens, with the same tokenizer"
            )
        return losses
