"""The team: the processes that train together and select in rounds. One process is a team of one.

# k = number of ranks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from selective_backprop.distributed.ranks import Ranks
from selective_backprop.types import Selection

Scope = Literal["global", "local"]

_BLOCK = 2**22  # candidates of all ranks per selection when a whole epoch is planned; 16 MB of scores


class Contribution(NamedTuple):
    """What one rank brings to a round."""

    size: int
    """Number of candidates this rank loaded; -1 if it has none left in this epoch."""
    offered: int
    """Number of candidates offered: loaded ones and skipped ones, without those that already wait in the queue."""
    undecided: int
    """Loaded candidates that must be scored in any case; -1 for all of them if selection is on, else none."""
    fraction: float
    """Fraction of this rank's epoch offered after this round."""
    on: bool
    """Whether this rank's schedule says that selection is on."""
    probing: bool
    """Whether this rank's schedule wants scores although selection is off."""


class Meeting(NamedTuple):
    """What all ranks bring to a round. Every rank gets the same; lists have one entry per rank."""

    sizes: list[int]
    """Number of candidates each rank loaded."""
    offered: list[int]
    """Number of candidates each rank offered: loaded and skipped, without those that already wait in the queue."""
    undecided: list[int]
    """Number of loaded candidates that each rank has to score and select from."""
    on: bool
    """Whether selection is on, for all ranks."""
    probing: bool
    """Whether candidates are scored although selection is off, for all ranks."""
    fraction: float
    """Fraction of the epoch offered after this round, on the slowest rank."""
    is_over: bool
    """Whether no rank has any candidates left in this epoch."""


class Choice(NamedTuple):
    """Which candidates of a round are trained on."""

    selection: Selection
    """The selection among this rank's candidates."""
    counts: list[int]
    """Number of selected candidates on each rank."""
    keeps_all: bool
    """Whether every candidate is selected exactly once, on all ranks."""


class Team:
    """Lets ranks select in rounds. To a round each rank brings one candidate batch, or none if it has run out.

    Every rank knows how many candidates the others have and how many of these were selected. So all ranks agree on how
    many training batches are full without a further message. All ranks must call every method, in the same order.

    Args:
        ranks: the ranks of the team.
        scope: "global" selects among the candidates of all ranks together, as one process would. Each rank makes the
            whole selection, with the same random numbers, and takes its own part. "local" selects on each rank alone.
    """

    def __init__(self, ranks: Ranks, scope: Scope) -> None:
        self.ranks, self.rank, self.size, self.scope = ranks, ranks.rank, ranks.size, scope
        self.pools = scope == "global" and ranks.size > 1
        """Whether ranks send each other their scores and select from all of them."""

    @property
    def speaks(self) -> bool:
        """Whether this rank writes the log lines that concern the whole team. Only rank 0 does."""
        return self.rank == 0

    def meet(self, mine: Contribution) -> Meeting:
        """Exchange what every rank brings to the next round.

        Rank 0's schedule decides for all ranks: schedules may follow losses or the clock, which differ between ranks.
        The fraction is that of the slowest rank, so that learning rates by progress are the same everywhere.
        """
        if self.size == 1:  # the same as below, without messages
            undecided = mine.undecided if mine.undecided >= 0 else mine.size * mine.on
            return Meeting(
                [mine.size], [mine.offered], [undecided], mine.on, mine.probing, mine.fraction, is_over=mine.size < 0
            )
        vote = mine.on + 2 * mine.probing
        everyone = self.ranks.share([mine.size, mine.offered, mine.undecided, mine.fraction, vote])
        first_vote = int(everyone[0][4])
        on = first_vote % 2 == 1
        sizes = [max(0, int(size)) for size, *_ in everyone]
        planned = [int(undecided) for _, _, undecided, *_ in everyone]
        return Meeting(
            sizes=sizes,
            offered=[int(offered) for _, offered, *_ in everyone],
            undecided=[size * on if few < 0 else few for size, few in zip(sizes, planned, strict=True)],
            on=on,
            probing=first_vote >= 2,
            fraction=min(numbers[3] for numbers in everyone),
            is_over=all(size < 0 for size, *_ in everyone),
        )

    def start_pooling(self, scores: Tensor, counts: list[int]) -> Callable[[], list[Tensor]]:
        """Begin to send this rank's scores to all others. Call the result to get every rank's scores, by rank.

        The caller can do other work in between.

        counts: number of scores on each rank.
        """
        return self.ranks.start_gather(scores, counts)

    def check_pooled(self, parts: list[Tensor]) -> None:
        """Raise if another rank's scores are not finite. That rank's own error names the examples."""
        for rank, part in enumerate(parts):
            if rank != self.rank and not bool(part.isfinite().all()):
                raise ValueError(f"rank {rank} has scores that are not finite: see its own error for which examples")

    def pool(self, values: Tensor, counts: list[int]) -> Tensor:
        """Join the values of all ranks if ranks select together; otherwise return this rank's values.

        counts: number of values on each rank.
        """
        return torch.cat(self.ranks.gather(values, counts)) if self.pools else values

    def divide(self, selection: Selection, counts: list[int]) -> Choice:
        """Give each rank its part of a selection, and count how many were selected on every rank.

        counts: number of candidates on each rank.
        """
        if self.size == 1:
            return Choice(selection, [selection.positions.numel()], selection.keeps_all(counts[0]))
        if not self.pools:
            # One number says both: how many were selected, and whether all were.
            numbers = self._share_count(2 * len(selection.positions) + selection.keeps_all(counts[self.rank]))
            return Choice(selection, [number // 2 for number in numbers], all(number % 2 for number in numbers))
        bounds = torch.searchsorted(selection.positions, torch.tensor([0, *counts]).cumsum(0))
        return Choice(self.own_part(selection, counts), bounds.diff().tolist(), selection.keeps_all(sum(counts)))

    def own_part(self, selection: Selection, counts: list[int]) -> Selection:
        """Cut this rank's part out of a selection among the candidates of all ranks.

        counts: number of candidates on each rank.
        """
        if not self.pools:
            return selection
        begin = sum(counts[: self.rank])
        end = begin + counts[self.rank]
        own = slice(*torch.searchsorted(selection.positions, torch.tensor([begin, end])).tolist())
        return Selection(selection.positions[own] - begin, selection.weights[own], selection.probabilities[begin:end])

    def give_up(self) -> None:
        """Tell the ranks that wait for this rank's selection that it failed. The caller raises its own error next."""
        if self.size > 1 and not self.pools:
            self.ranks.share([-1])

    def blocks(self, count: int) -> list[tuple[slice, list[int]]]:
        """Divide an epoch into blocks of candidates that all ranks select from together.

        Returns, for each block, the slice of this rank's `count` candidates and the number of candidates on each rank.
        A rank that selects alone gets a single block.
        """
        if not self.pools:
            return [(slice(None), [count])]
        counts = self._share_count(count)
        share = max(1, _BLOCK // self.size)
        return [
            (slice(begin, begin + share), [min(max(0, other - begin), share) for other in counts])
            for begin in range(0, max(*counts, 1), share)
        ]

    def cannot_plan(self) -> None:
        """Tell the other ranks that this rank cannot plan its epoch. The caller raises its own error next."""
        if self.pools:
            self.ranks.share([-1])

    def _share_count(self, count: int) -> list[int]:
        """Exchange one number between all ranks. Raises if another rank failed and could not give one."""
        counts = [int(number) for (number,) in self.ranks.share([count])]
        failed = [rank for rank, other in enumerate(counts) if other < 0]
        if failed:
            raise ValueError(f"rank {failed[0]} could not select from its candidates: see its own error for why")
        return counts
