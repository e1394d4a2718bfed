"""The history: the last R losses, used as a CDF (cumulative distribution function)."""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop import functional

_SHORT = 2048  # up to this size, comparing with every loss is faster than keeping them in order


class LossHistory:
    """Remembers the last `size` losses, and tells the percentile of a loss among them.

    Algorithm 2 of the paper adds a loss and then ranks it. `rank` does so for a whole candidate batch at once, so that
    the order within the batch does not matter. Losses of a batch larger than `size` are ranked within the batch.

    Args:
        size: R, the number of losses to remember. The time per loss grows with the logarithm of R.

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
        self._order = _Order() if size > _SHORT else None

    def __len__(self) -> int:
        return self._filled

    def rank(self, losses: Tensor) -> Tensor:
        """Add the losses, then return the percentile of each, in (0, 1]."""
        losses = losses.to("cpu", torch.float32)
        if losses.numel() >= self.size:  # numel: a tenth of the time of len, which counts here
            self._replace(losses[-self.size :])
            return functional.rank_percentiles(losses)
        self._add(losses)
        return self._percentiles(losses)

    def counts(self, losses: Tensor) -> tuple[Tensor, Tensor, int]:
        """Add the losses, then count for each how many remembered losses are smaller, and how many are not larger.

        The third result is the number of remembered losses.

        >>> below, up_to, total = LossHistory(size=4).counts(torch.tensor([7.0, 1.0, 7.0, 9.0]))
        >>> below.tolist(), up_to.tolist(), total
        ([1, 0, 1, 3], [3, 1, 3, 4], 4)
        """
        losses = losses.to("cpu", torch.float32)
        if losses.numel() >= self.size:
            self._replace(losses[-self.size :])
            return (*_counts(losses.sort().values, losses), losses.numel())
        self._add(losses)
        if self._order is not None:
            return (*self._order.counts(losses), self._filled)
        known = self._ring if self._filled == self.size else self._ring[: self._filled]
        return (*_counts(known.sort().values, losses), self._filled)

    def percentiles(self, losses: Tensor) -> Tensor:
        """Return the percentile of each loss among those remembered, without adding them."""
        if not self._filled:
            raise ValueError("the history is empty: rank() some losses first")
        return self._percentiles(losses.to("cpu", torch.float32))

    def _percentiles(self, losses: Tensor) -> Tensor:
        if self._order is not None:
            balance = self._order.balance(losses)
        else:
            # Sorting would take twice as long, on losses that are new each time.
            known = self._ring if self._filled == self.size else self._ring[: self._filled]
            balance = (losses.unsqueeze(1) - known).sign_().sum(1)
        return functional.percentiles_from_balance(balance, self._filled)

    def losses(self) -> Tensor:
        """Return the remembered losses, oldest first."""
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
        if self._order is not None:
            self._order.sort(self._ring[: self._filled])

    def _add(self, losses: Tensor) -> None:
        space = self.size - self._next
        if losses.numel() > space:  # fill up to the end of the ring, then go on at its beginning
            self._add(losses[:space])
            losses = losses[space:]
        end = self._next + losses.numel()
        place = self._ring[self._next : end]
        if self._order is not None:
            # While the ring fills for the first time, nothing leaves it.
            self._order.change(arriving=losses, leaving=place[: self._filled - self._next])
        place.copy_(losses)
        self._filled = max(self._filled, end)
        self._next = end % self.size
        if self._order is not None and self._order.num_changes * 8 >= self.size:
            self._order.sort(self._ring[: self._filled])


class _Order:
    """Counts the smaller and larger losses of a long history, without sorting it at every change.

    Losses that came and losses that went since the last full sort are kept in two lists, each of a few sorted runs of
    falling length. A loss takes part in O(log n) merges, and there is one full sort for every n / 8 changes.
    """

    def __init__(self) -> None:
        self.num_changes = 0
        self._came: list[Tensor] = []
        self._went: list[Tensor] = []

    def sort(self, losses: Tensor) -> None:
        self.num_changes, self._came, self._went = 0, [losses.sort().values], []

    def change(self, *, arriving: Tensor, leaving: Tensor) -> None:
        self.num_changes += len(arriving)
        for runs, values in ((self._came, arriving), (self._went, leaving)):
            while runs and len(runs[-1]) <= len(values):
                values = torch.cat([runs.pop(), values])
            if len(values):
                runs.append(values.sort().values)

    def balance(self, losses: Tensor) -> Tensor:
        """Return, for each loss, the number of smaller losses minus the number of larger ones."""
        below, up_to = self.counts(losses)
        size = sum(map(len, self._came)) - sum(map(len, self._went))
        return below + up_to - size

    def counts(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Count for each loss how many losses of the history are smaller, and how many are not larger."""
        below, up_to = torch.zeros(2, len(losses), dtype=torch.int64)
        for runs, sign in ((self._came, 1), (self._went, -1)):
            for run in runs:
                smaller, not_larger = _counts(run, losses)
                below.add_(smaller, alpha=sign)
                up_to.add_(not_larger, alpha=sign)
        return below, up_to


def _counts(ordered: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Count for each loss how many of the ordered values are smaller, and how many are not larger."""
    return torch.searchsorted(ordered, losses), torch.searchsorted(ordered, losses, right=True)
