"""How many candidates to keep of each batch, so that the share is right in the long run."""

from __future__ import annotations

import math

_HORIZON = 32  # number of candidates, or one batch if it is larger, over which a missed share is made up for


class Debt:
    """Counts how many candidates coin flips kept too few or too many, and finds the share that makes up for it.

    Args:
        share: share of candidates to keep in the long run.

    >>> debt = Debt(0.25)
    >>> debt.count_kept(64, 8)  # half of what was asked for
    >>> debt.share_for(64)
    0.375
    """

    def __init__(self, share: float) -> None:
        self.share = share
        # Bounds, so that a batch never keeps nothing or everything just to make up for earlier ones.
        self._least, self._most = share / 64, 1 - (1 - share) / 64
        self.owed = 0.0
        """How many candidates too few were kept so far. It is bounded."""

    def share_for(self, num_candidates: int) -> float:
        """Return the share of the next candidates to keep on average."""
        if not self.owed:
            return self.share
        return min(max(self.share + self.owed / max(num_candidates, _HORIZON), self._least), self._most)

    def count_kept(self, num_candidates: int, num_kept: float) -> None:
        """Count the candidates kept."""
        owed = self.owed + self.share * num_candidates - num_kept
        # Bounded by what can soon be made up for. Otherwise a fall of the losses would have an effect epochs later.
        horizon = max(num_candidates, _HORIZON)
        self.owed = min(max(owed, -horizon), horizon)


class Sizes:
    """Decides how many to keep of each candidate batch. Fractions of an example are carried over to the next batch.

    share: share of candidates to keep.

    >>> sizes = Sizes(1 / 3)
    >>> [sizes.next_size(8) for _ in range(6)]
    [3, 2, 3, 3, 2, 3]
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.owed = 0.0
        """The fraction of an example that is carried over."""

    def next_size(self, num_candidates: int) -> int:
        """Return how many of the next candidates to keep."""
        due = self.share * num_candidates + self.owed
        # The small number corrects rounding errors of sums such as 0.1 + 0.1 + ...: half an example is rounded up.
        size = min(num_candidates, math.floor(due + 0.5 + 1e-9))
        self.owed = due - size
        return size
