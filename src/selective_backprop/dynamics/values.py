"""What one training step says about each of its examples.

# N = examples in the batch, C = classes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def class_values(outputs: Any, targets: Any) -> Tensor | None:
    """Compute margin, confidence, best other class and label of each example: (N, 4) float32, on the outputs' device.

    The margin is the label's logit minus the highest other logit. It is positive if the prediction is right. The
    confidence is the probability of the label. An example whose target is no class, such as an ignore_index, has NaN in
    all four places.

    Args:
        outputs: logits (N, C), or an object with `logits`.
        targets: (N,) classes.

    Returns None if these are not outputs and targets of a classification: for regression or sequences, or if targets
    are probabilities. Nothing here waits for a GPU.

    >>> class_values(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([2]))[0, [0, 2, 3]].tolist()
    [-1.0, 1.0, 2.0]
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        return None
    if logits.dim() != 2 or logits.shape[1] < 2 or targets.dim() != 1 or len(targets) != len(logits):
        return None
    if targets.is_floating_point() or targets.dtype == torch.bool or not logits.is_floating_point():
        return None
    with torch.no_grad():
        logits, labels = logits.detach().float(), targets.to(logits.device, torch.int64)
        known = (labels >= 0) & (labels < logits.shape[1])
        rows = labels.masked_fill(~known, 0).unsqueeze(1)
        own = logits.gather(1, rows)
        best, other = logits.scatter(1, rows, float("-inf")).max(1)
        own = own.squeeze(1)
        confidence = (own - logits.logsumexp(1)).exp()
        values = torch.stack([own - best, confidence, other.float(), labels.float()], 1)
        return values.masked_fill_(~known.unsqueeze(1), float("nan"))
