"""The history: the last R losses, used as a CDF (cumulative distribution function)."""

from __future__ import annotations

import torch
from torch import Tensor


class LossHistory:
    """Remembers the last `size` losses, and tells the percentile of a loss among them.

    Algorithm 2 of the paper adds a loss and then ranks it. `rank` does so for a whole candidate batch at once, so that
    the order within the batch does not matter. Losses of a batch larger than `size` are ranked within the batch.

    Args:
        size: R, the number of losses to remember.

    >>> history = LossHistory(size=4)
    >>> history.rank(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [0.25, 0.5, 0.75, 1.0]
    >>> history.rank(torch.tensor([2.5])).tolist()      # among 2, 3, 4 and itself
    [0.5]
    """

    def __init__(self, size: int = 1024) -> None:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"history_size must be a whole number >= 1, got {size!r:.100}")
        self.size = size
        self.losses = torch.empty(0)
        """The remembered losses, oldest first."""

    def rank(self, losses: Tensor) -> Tensor:
        """Add the losses, then return the percentile of each, in (0, 1]. Ties share the mean of their ranks."""
        below, up_to, total = self.counts(losses)
        return (below + up_to + 1).to(torch.float64).div_(2 * total)

    def counts(self, losses: Tensor) -> tuple[Tensor, Tensor, int]:
        """Add the losses, then count for each how many remembered losses are smaller, and how many are not larger.

        The third result is the number of remembered losses.

        >>> below, up_to, total = LossHistory(size=4).counts(torch.tensor([7.0, 1.0, 7.0, 9.0]))
        >>> below.tolist(), up_to.tolist(), total
        ([1, 0, 1, 3], [3, 1, 3, 4], 4)
        """
        losses = losses.to("cpu", torch.float32)
        self.losses = torch.cat([self.losses, losses])[-self.size :]
        known = self.losses if losses.numel() < self.size else losses
        ordered = known.sort().values
        below, up_to = torch.searchsorted(ordered, losses), torch.searchsorted(ordered, losses, right=True)
        return below, up_to, known.numel()

    def state_dict(self) -> dict[str, Tensor]:
        return {"losses": self.losses.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        losses = state["losses"]
        if len(losses) > self.size:
            raise ValueError(f"saved history holds {len(losses)} losses, more than this one's size {self.size}")
        self.losses = losses.clone()
