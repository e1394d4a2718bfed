"""How many candidates to keep of each batch, so that the share is right in the long run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional

_HORIZON = 32  # number of candidates, or one batch if it is larger, over which a missed share is made up for


class Debt:
    """Counts how many candidates coin flips kept too few or too many, and finds the share that makes up for it.

    Args:
        share: share of candidates to keep in the long run.
        pays: whether later candidates make up for earlier ones. If not, the share is always the same.

    >>> debt = Debt(0.25)
    >>> debt.count_kept(64, 8)  # half of what was asked for
    >>> debt.share_for(64)
    0.375
    """

    def __init__(self, share: float, *, pays: bool = True) -> None:
        self.share, self.pays = share, pays
        # Bounds, so that a batch never keeps nothing or everything just to make up for earlier ones.
        self._least, self._most = share / 64, 1 - (1 - share) / 64
        self._owed = 0.0

    def share_for(self, num_candidates: int) -> float:
        """Return the share of the next candidates to keep on average."""
        if not self._owed:
            return self.share
        return min(max(self.share + self._owed / max(num_candidates, _HORIZON), self._least), self._most)

    def count_kept(self, num_candidates: int, num_kept: float) -> None:
        """Count the candidates kept."""
        if not self.pays:
            return
        owed = self._owed + self.share * num_candidates - num_kept
        # Bounded by what can soon be made up for. Otherwise a fall of the losses would have an effect epochs later.
        horizon = max(num_candidates, _HORIZON)
        self._owed = min(max(owed, -horizon), horizon)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owed = state["owed"]


class Sizes:
    """Decides how many to keep of each candidate batch. Fractions of an example are carried over to the next batch.

    Args:
        share: share of candidates to keep.
        whole: round to whole numbers. If False, sizes are share * N, for callers that round by chance.

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
        """Return how many of the next candidates to keep."""
        if not self.whole:
            return self.share * num_candidates
        # The small number corrects rounding errors of sums such as 0.1 + 0.1 + ...: half an example is rounded up.
        return min(num_candidates, max(0, math.floor(self.share * num_candidates + self._owed + 0.5 + 1e-9)))

    def count_kept(self, num_candidates: int, num_kept: int) -> None:
        """Count the candidates kept."""
        if self.whole:
            # Bounded, so that later batches do not make up for a batch that could not keep as many as asked for.
            self._owed = min(max(self._owed + self.share * num_candidates - num_kept, -1.0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self._owed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owed = state["owed"]


def sample_of_size(
    chances: Tensor, scores: Tensor, size: float, num_selected: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample num_selected candidates in proportion to chances. Returns positions and the probabilities of all.

    size: num_selected before it was rounded by chance. The probabilities take this rounding into account.
    """
    possible = int((chances > 0).sum())
    given = functional.fixed_size_probabilities(chances, min(num_selected, possible))
    # Sampled in the order of scores, so that the sample is spread evenly over easy and hard candidates.
    order = scores.argsort()
    positions = order[functional.systematic_sample(given[order], generator)].sort().values

    def probabilities_of(count: int) -> Tensor:
        if count == num_selected:
            return given
        return functional.fixed_size_probabilities(chances, min(count, possible))

    return positions, mean_over_rounding(size, probabilities_of)


def chance_to_be_highest(scores: Tensor, num_selected: int) -> Tensor:
    """Return the chance of each candidate to be among the highest scores, if ties are decided by lot.

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
    """Round a size down or up by chance, so that it is right on average. A whole size stays as it is.

    >>> draw_whole(3.0)
    3
    """
    if size == int(size):
        return int(size)
    return int(size + float(torch.rand((), generator=generator, dtype=torch.float64)))


def mean_over_rounding(size: float, probabilities_of: Callable[[int], Tensor]) -> Tensor:
    """Compute probabilities for a size that is rounded by chance, from those of the two whole sizes next to it.

    >>> mean_over_rounding(1.25, lambda size: torch.full((2,), size / 2.0)).tolist()
    [0.625, 0.625]
    """
    low = int(size)
    if size == low:
        return probabilities_of(low)
    return torch.lerp(probabilities_of(low), probabilities_of(low + 1), size - low)


def share_out(total: float, sizes: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Divide a total among groups in proportion to their sizes. Returns exact parts, and whole ones for now.

    One random number rounds all parts, each down or up. The whole parts add up to the total, or to the total rounded
    down or up if it is not whole.

    >>> average, now = share_out(3, torch.tensor([5, 3, 4]))
    >>> average.tolist(), int(now.sum())
    ([1.25, 0.75, 1.0], 3)
    """
    average = sizes.to(torch.float64) * (total / max(1, int(sizes.sum())))
    ends = average.cumsum(0)
    if total == int(total):
        ends[-1:] = total  # so that a rounding error does not lose one
    start = torch.rand(1, generator=generator, dtype=torch.float64)
    now = torch.diff((ends + start).floor_(), prepend=torch.zeros(1, dtype=torch.float64)).to(torch.int64)
    return average, torch.minimum(now, sizes)
