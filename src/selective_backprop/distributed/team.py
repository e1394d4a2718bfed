"""The team: the processes that train together and select in rounds. One process is a team of one.

# k = number of ranks
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selective_backprop.distributed.ranks import Ranks
from selective_backprop.types import Selection

_BLOCK = 2**22  # candidates of all ranks that are selected from at once when an epoch is planned; 16 MB of scores


class Meeting(NamedTuple):
    """What all ranks bring to a round. Every rank gets the same."""

    sizes: list[int]
    """Number of candidates that each rank loaded."""
    is_over: bool
    """Whether no rank has any candidates left in this epoch."""
    fraction: float
    """Fraction of the epoch offered after this round, on the slowest rank."""
    on: bool
    """Whether selection is on, for all ranks."""
    probing: bool
    """Whether candidates are scored although selection is off, for all ranks."""


class Share(NamedTuple):
    """Which candidates of a round are trained on: a rank's share of the team's selection."""

    selection: Selection
    """The selection among this rank's candidates."""
    counts: list[int]
    """Number of selected candidates on each rank."""
    keeps_all: bool
    """Whether every candidate is selected exactly once, on all ranks."""


class Team:
    """Lets ranks select in rounds, among the candidates of all ranks together, as one process would.

    To a round each rank brings one candidate batch, or none if it has run out. Every rank makes the whole selection,
    with the same random numbers, and takes its own share. So all ranks know how many training batches are full without
    a further message. All ranks must call every method, in the same order.

    Args:
        ranks: the ranks of the team.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.rank, self.size = ranks, ranks.rank, ranks.size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the log lines that concern the whole team."""
        return self.rank == 0

    def meet(self, size: int, fraction: float, *, is_over: bool, on: bool, probing: bool) -> Meeting:
        """Exchange what every rank brings to the next round.

        Rank 0's schedule decides for all ranks: schedules may follow losses or the clock, which differ between ranks.
        The fraction is that of the slowest rank, so that learning rates by progress are the same everywhere.

        Args:
            size: number of candidates that this rank loaded; 0 if it has none left in this epoch.
            fraction: fraction of this rank's epoch offered after this round.
            is_over: whether this rank has no candidates left in this epoch.
            on: whether this rank's schedule says that selection is on.
            probing: whether this rank's schedule wants scores although selection is off.
        """
        if self.size == 1:  # the same as below, without messages
            return Meeting([size], is_over, fraction, on, probing)
        mine = [size, is_over, fraction, on, probing]
        sizes, over, fractions, ons, probings = zip(*self.ranks.share(mine), strict=True)
        return Meeting(list(map(int, sizes)), all(over), min(fractions), bool(ons[0]), bool(probings[0]))

    def pool(self, values: Tensor, counts: list[int]) -> Tensor:
        """Join the values of all ranks. counts: number of values on each rank."""
        return values if self.size == 1 else torch.cat(self.ranks.gather(values, counts))

    def require_finite(self, everyone: Tensor, counts: list[int]) -> None:
        """Raise if another rank has scores that are not finite: it raises, too. counts: number of scores by rank."""
        if self.size == 1:
            return
        for rank, part in enumerate(torch.split(everyone, counts)):
            if not bool(part.isfinite().all()):
                raise ValueError(f"rank {rank} has scores that are not finite: see its own error for which examples")

    def count(self, number: int) -> list[int]:
        """Return every rank's number."""
        return [int(other) for (other,) in self.ranks.share([number])]

    def divide(self, selection: Selection, counts: list[int]) -> Share:
        """Cut out this rank's share of a selection, and count how many were selected on every rank.

        counts: number of candidates on each rank.
        """
        keeps_all = selection.keeps_all(sum(counts))
        if self.size == 1:
            return Share(selection, [selection.positions.numel()], keeps_all)
        bounds = torch.searchsorted(selection.positions, torch.tensor([0, *counts]).cumsum(0))
        return Share(self.own_part(selection, counts), bounds.diff().tolist(), keeps_all)

    def own_part(self, selection: Selection, counts: list[int]) -> Selection:
        """Cut this rank's part out of a selection among the candidates of all ranks.

        counts: number of candidates on each rank.
        """
        if self.size == 1:
            return selection
        begin = sum(counts[: self.rank])
        end = begin + counts[self.rank]
        own = slice(*torch.searchsorted(selection.positions, torch.tensor([begin, end])).tolist())
        return Selection(selection.positions[own] - begin, selection.weights[own], selection.probabilities[begin:end])

    def blocks(self, count: int) -> list[slice]:
        """Divide an epoch of `count` candidates of this rank into blocks that all ranks decide about together.

        All ranks get equally many blocks, at least one. The last ones may be empty.
        """
        share = max(1, _BLOCK // self.size)
        return [slice(begin, begin + share) for begin in range(0, max(*self.count(count), 1), share)]
