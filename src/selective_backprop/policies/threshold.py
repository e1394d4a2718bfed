"""Keep every score that reaches a threshold."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selective_backprop.options import require_flags
from selective_backprop.types import Policy, Selection


class ThresholdPolicy(Policy):
    """Keep the candidates whose score is not below a threshold. At least the highest score is kept.

    Args:
        threshold: the threshold. 0 keeps everything, if no score is negative.
        relative: the threshold is a multiple of the candidates' mean score. So it means the same for any scale of
            scores. If False, it is compared with the scores themselves.

    >>> ThresholdPolicy(threshold=0.5).select(torch.tensor([0.1, 0.4, 1.0]), torch.Generator()).positions.tolist()
    [1, 2]
    """

    def __init__(self, *, threshold: float, relative: bool = True) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold < math.inf:
            raise ValueError(f"threshold must be a number >= 0, got {threshold!r}")
        require_flags(relative=relative)
        self.threshold, self.relative = threshold, relative

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        threshold = self.threshold
        if self.relative:
            # Equal scores must not fall below their own mean by rounding.
            threshold = (1 - 1e-6) * threshold * float(scores.mean(dtype=torch.float64))
        keep = scores >= min(threshold, float(scores.max()))
        positions = keep.nonzero().flatten()
        return Selection(positions, torch.ones(len(positions)), keep.to(torch.float64))
