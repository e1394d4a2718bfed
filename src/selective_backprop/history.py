"""The last R losses, as a CDF."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional


class _SortedRuns:
    """A growing multiset kept as a few sorted runs of falling length: adding costs O(log n) a value, amortised."""

    def __init__(self, values: Tensor | None = None) -> None:
        self.runs: list[Tensor] = [] if values is None else [values.sort().values]

    def add(self, values: Tensor) -> None:
        run = values
        while self.runs and len(self.runs[-1]) <= len(run):
            run = torch.cat([self.runs.pop(), run])
        self.runs.append(run.sort().values)

    def count(self, values: Tensor, *, right: bool) -> Tensor:
        """How many members are smaller than each value (right: not larger)."""
        total = torch.zeros(len(values), dtype=torch.int64)
        for run in self.runs:
            total += torch.searchsorted(run, values, right=right)
        return total


class LossHistory:
    """The last `size` losses; answers at which percentile a loss stands among them.

    Algorithm 2 of the paper adds a loss and then ranks it; `rank` does so for a whole candidate batch at once,
    so that the order within the batch does not matter. A batch larger than `size` is ranked among itself.

    The time per loss grows with the logarithm of `size`: what came and what went since the last full sort is
    counted apart, and a full sort happens once per size / 8 losses.

    Args:
        size: R, how many losses to remember.

    >>> history = LossHistory(size=4)
    >>> history.rank(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [0.25, 0.5, 0.75, 1.0]
    >>> history.rank(torch.tensor([2.5])).tolist()      # among 2, 3, 4 and itself
    [0.5]
    """

    def __init__(self, size: int = 1024) -> None:
        if size < 1:
            raise ValueError(f"history size must be at least 1, got {size}")
        self.size = size
        self._ring = torch.empty(size)
        self._next = 0  # where the next loss goes
        self._filled = 0
        self._came = _SortedRuns()
        self._went = _SortedRuns()
        self._since_sort = 0

    def __len__(self) -> int:
        return self._filled

    def rank(self, losses: Tensor) -> Tensor:
        """Add the losses, then give the percentile of each, in (0, 1]."""
        losses = losses.to("cpu", torch.float32)
        if len(losses) >= self.size:
            self._replace(losses[-self.size :])
            return functional.rank_percentiles(losses)
        self._add(losses)
        return self.percentiles(losses)

    def percentiles(self, losses: Tensor) -> Tensor:
        """Percentile of each loss among those remembered, without adding them."""
        losses = losses.to("cpu", torch.float32)
        if not self._filled:
            raise ValueError("the history is empty: rank() some losses first")
        below = self._came.count(losses, right=False) - self._went.count(losses, right=False)
        up_to = self._came.count(losses, right=True) - self._went.count(losses, right=True)
        return functional.percentiles_from_counts(below, up_to, self._filled)

    def losses(self) -> Tensor:
        """What is remembered, oldest first."""
        if self._filled < self.size:
            return self._ring[: self._filled].clone()
        return self._ring.roll(-self._next)

    def state_dict(self) -> dict[str, Tensor]:
        return {"losses": self.losses()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        losses = state["losses"]
        if len(losses) > self.size:
            raise ValueError(f"saved history holds {len(losses)} losses, more than this one's size {self.size}")
        self._replace(losses)

    def _replace(self, losses: Tensor) -> None:
        self._filled = len(losses)
        self._ring[: self._filled] = losses
        self._next = self._filled % self.size
        self._sort()

    def _add(self, losses: Tensor) -> None:
        count = len(losses)
        positions = torch.arange(self._next, self._next + count).remainder_(self.size)
        overwritten = max(0, self._filled + count - self.size)
        leaving = self._ring[positions[count - overwritten :]] if overwritten else None
        self._ring[positions] = losses
        self._next = (self._next + count) % self.size
        self._filled = min(self.size, self._filled + count)
        self._since_sort += count
        if self._since_sort * 8 >= self.size:
            self._sort()
            return
        self._came.add(losses)
        if leaving is not None:
            self._went.add(leaving)

    def _sort(self) -> None:
        self._came, self._went, self._since_sort = _SortedRuns(self._ring[: self._filled]), _SortedRuns(), 0
