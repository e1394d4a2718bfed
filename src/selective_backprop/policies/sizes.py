"""Shares and sizes of samples that are a given share of all candidates in the long run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional

_HORIZON = 32  # candidates, or one batch if it is larger, in which a share that was missed is made up for


class Debt:
    """What coins have kept too little or too much of, and the share that makes up for it.

    Args:
        share: of candidates to keep in the long run.

    >>> debt = Debt(0.25)
    >>> debt.count_kept(64, 8)  # half of what was asked for
    >>> debt.share_for(64)
    0.375
    """

    def __init__(self, share: float) -> None:
        self.share = share
        # Neither nothing nor everything is kept to make up for the candidates before.
        self._least, self._most = share / 64, 1 - (1 - share) / 64
        self._owed = 0.0

    def share_for(self, num_candidates: int) -> float:
        """Share of the next candidates to keep on average."""
        if not self._owed:
            return self.share
        return min(max(self.share + self._owed / max(num_candidates, _HORIZON), self._least), self._most)

    def count_kept(self, num_candidates: int, num_kept: float) -> None:
        """So many were kept of so many."""
        owed = self._owed + self.share * num_candidates - num_kept
        # No more than is soon made up for, or a fall of the losses would be paid for epochs later.
        horizon = max(num_candidates, _HORIZON)
        self._owed = min(max(owed, -horizon), horizon)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owed = state["owed"]


class Sizes:
    """How many to keep of each candidate batch. What does not make a whole example is carried over to the next.

    Args:
        share: of candidates to keep.
        whole: round to whole numbers. Otherwise sizes are share * N, for callers that round by chance.

    >>> sizes, kept = Sizes(1 / 3), []
    >>> for _ in range(6):
    ...     kept.append(int(sizes.size_for(8)))
    ...     sizes.count_kept(8, kept[-1])
    >>> kept
    [3, 2, 3, 3, 2, 3]
    """

    def __init__(self, share: float, *, whole: bool = True) -> None:
        self.share, self.whole = share, whole
        self._owed = 0.0

    def size_for(self, num_candidates: int) -> float:
        """What to keep of the next candidates."""
        if not self.whole:
            return self.share * num_candidates
        # The small allowance is for sums such as 0.1 + 0.1 + ...: half an example is always rounded up.
        return min(num_candidates, max(0, math.floor(self.share * num_candidates + self._owed + 0.5 + 1e-9)))

    def count_kept(self, num_candidates: int, num_kept: int) -> None:
        """So many were kept of so many."""
        if self.whole:
            # Where fewer could be kept than asked for, the next batches do not make up for it.
            self._owed = min(max(self._owed + self.share * num_candidates - num_kept, -1.0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owed = state["owed"]


def sample_of_size(
    chances: Tensor, scores: Tensor, size: float, num_selected: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Positions of num_selected candidates, with inclusion in proportion to chances, and their probabilities.

    size: what num_selected is on average: it is rounded down or up by chance, which the probabilities take into
        account.
    """
    possible = int((chances > 0).sum())
    given = functional.fixed_size_probabilities(chances, min(num_selected, possible))
    # In order of score, so that the sample is spread over easy and hard alike.
    order = scores.argsort()
    positions = order[functional.systematic_sample(given[order], generator)].sort().values

    def probabilities_of(count: int) -> Tensor:
        if count == num_selected:
            return given
        return functional.fixed_size_probabilities(chances, min(count, possible))

    return positions, mean_over_rounding(size, probabilities_of)


def chance_to_be_highest(scores: Tensor, num_selected: int) -> Tensor:
    """The chance of each to be among the highest scores if ties are decided by lot.

    >>> chance_to_be_highest(torch.tensor([1.0, 9.0, 4.0, 1.0]), 3).tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    if not num_selected:
        return torch.zeros(len(scores), dtype=torch.float64)
    num_selected = min(num_selected, len(scores))
    lowest_kept = scores.kthvalue(len(scores) - num_selected + 1).values
    higher, tied = (scores > lowest_kept).to(torch.float64), (scores == lowest_kept).to(torch.float64)
    return higher + tied * ((num_selected - higher.sum()) / tied.sum())


def draw_whole(size: float, generator: torch.Generator | None = None) -> int:
    """The size itself if it is whole; otherwise it rounded down or up by chance, so that it is right on average.

    >>> draw_whole(3.0)
    3
    """
    if size == int(size):
        return int(size)
    return int(size + float(torch.rand((), generator=generator, dtype=torch.float64)))


def mean_over_rounding(size: float, probabilities_of: Callable[[int], Tensor]) -> Tensor:
    """Probabilities if a size is rounded down or up by chance, given those of both whole sizes.

    >>> mean_over_rounding(1.25, lambda size: torch.full((2,), size / 2.0)).tolist()
    [0.625, 0.625]
    """
    low = int(size)
    if size == low:
        return probabilities_of(low)
    return torch.lerp(probabilities_of(low), probabilities_of(low + 1), size - low)


def share_out(total: float, sizes: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """What each of several groups gets of a total in proportion to its size: on average, and in whole numbers now.

    One random number rounds all of them, each to one of its two neighbours, so that they add up to the total, or to
    one of its neighbours if it is not whole.

    >>> average, now = share_out(3, torch.tensor([5, 3, 4]))
    >>> average.tolist(), int(now.sum())
    ([1.25, 0.75, 1.0], 3)
    """
    average = sizes.to(torch.float64) * (total / max(1, int(sizes.sum())))
    ends = average.cumsum(0)
    if total == int(total):
        ends[-1:] = total  # rounding must not lose one
    start = torch.rand(1, generator=generator, dtype=torch.float64)
    now = torch.diff((ends + start).floor_(), prepend=torch.zeros(1, dtype=torch.float64)).to(torch.int64)
    return average, torch.minimum(now, sizes)
