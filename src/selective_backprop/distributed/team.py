"""The processes that train together: they go through their candidates in rounds. One process is a team of one.

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

_BLOCK = 2**22  # how many candidates are selected from at once when a whole epoch is; 16 MB of scores


class Brought(NamedTuple):
    """What one rank brings to a round."""

    size: int
    """Candidates that it loaded; -1 when its epoch is over."""
    offered: int
    """The same, with those that were skipped before loading, except where they wait in the queue already."""
    undecided: int
    """How many of the loaded ones have to be scored, whether selection is on or not; -1: all, if it is on."""
    fraction: float
    """How much of its epoch has been offered after this round."""
    on: bool
    """Whether its schedule says that selection is on."""
    probing: bool
    """Whether its schedule wants scores although selection is off."""


class Round(NamedTuple):
    """What all ranks bring to a round, as each of them knows it; lists are by rank."""

    sizes: list[int]
    offered: list[int]
    undecided: list[int]
    on: bool
    probing: bool
    fraction: float
    is_over: bool
    """Whether no rank has any candidates left in this epoch."""


class Choice(NamedTuple):
    """What a policy chose among the candidates of a round that were scored."""

    selection: Selection
    """Of this rank's."""
    counts: list[int]
    """How many were selected, by rank."""
    keeps_all: bool
    """Whether every one is selected, once, on all ranks."""


class Team:
    """One candidate batch of every rank at a time; a rank that has no more of them brings none.

    All ranks know of each other how many candidates they have and how many of these were selected, so that they agree
    on how many training batches are full without a further message. Every method is to be called by all ranks, in the
    same order.

    Args:
        ranks: who takes part.
        scope: "global" selects among the candidates of all ranks together, as one process would: each rank does so for
            all of them, with the same random numbers, and takes its own. "local" selects on each rank by itself.
    """

    def __init__(self, ranks: Ranks, scope: Scope) -> None:
        self.ranks, self.rank, self.size, self.scope = ranks, ranks.rank, ranks.size, scope
        self.pools = scope == "global" and ranks.size > 1
        """Whether scores go to other ranks."""

    @property
    def speaks(self) -> bool:
        """Whether this rank logs what concerns all: the first one does."""
        return self.rank == 0

    def meet(self, own: Brought) -> Round:
        """What every rank brings to the next round.

        Rank 0's schedule counts: a schedule may go by losses or by the clock, which differ. The slowest rank's fraction
        counts, so that learning rates by progress are the same everywhere.
        """
        if self.size == 1:  # as below, without a word to anybody
            undecided = own.undecided if own.undecided >= 0 else own.size * own.on
            return Round(
                [own.size], [own.offered], [undecided], own.on, own.probing, own.fraction, is_over=own.size < 0
            )
        vote = own.on + 2 * own.probing
        told = self.ranks.share([own.size, own.offered, own.undecided, own.fraction, vote])
        first_vote = int(told[0][4])
        on = first_vote % 2 == 1
        sizes = [max(0, int(size)) for size, *_ in told]
        planned = [int(undecided) for _, _, undecided, *_ in told]
        return Round(
            sizes=sizes,
            offered=[int(offered) for _, offered, *_ in told],
            undecided=[size * on if few < 0 else few for size, few in zip(sizes, planned, strict=True)],
            on=on,
            probing=first_vote >= 2,
            fraction=min(numbers[3] for numbers in told),
            is_over=all(size < 0 for size, *_ in told),
        )

    def start_pooling(self, scores: Tensor, counts: list[int]) -> Callable[[], list[Tensor]]:
        """Send this rank's scores to all others. Call the result for the scores of all, by rank.

        There may be something else to do meanwhile.

        counts: how many scores each rank has.
        """
        return self.ranks.start_gather(scores, counts)

    def check_pooled(self, parts: list[Tensor]) -> None:
        """Raise for another rank's scores that cannot be selected from: that rank has said which examples these are."""
        for rank, part in enumerate(parts):
            if rank != self.rank and not bool(part.isfinite().all()):
                raise ValueError(f"rank {rank} has scores that are not finite: see its own error for which examples")

    def pool(self, values: Tensor, counts: list[int]) -> Tensor:
        """All values to select from, such as the groups of pooled scores."""
        return torch.cat(self.ranks.gather(values, counts)) if self.pools else values

    def divide(self, selection: Selection, counts: list[int]) -> Choice:
        """This rank's part of a selection among pooled candidates, of which each rank has so many."""
        if self.size == 1:
            return Choice(selection, [selection.positions.numel()], selection.keeps_all(counts[0]))
        if not self.pools:
            told = self._tell(2 * len(selection.positions) + selection.keeps_all(counts[self.rank]))
            return Choice(selection, [number // 2 for number in told], all(number % 2 for number in told))
        bounds = torch.searchsorted(selection.positions, torch.tensor([0, *counts]).cumsum(0))
        return Choice(self.own_part(selection, counts), bounds.diff().tolist(), selection.keeps_all(sum(counts)))

    def own_part(self, selection: Selection, counts: list[int]) -> Selection:
        """What of a selection among pooled candidates, of which each rank has so many, is about this rank's."""
        if not self.pools:
            return selection
        begin = sum(counts[: self.rank])
        end = begin + counts[self.rank]
        own = slice(*torch.searchsorted(selection.positions, torch.tensor([begin, end])).tolist())
        return Selection(selection.positions[own] - begin, selection.weights[own], selection.probabilities[begin:end])

    def give_up(self) -> None:
        """This rank cannot choose, and its own error follows. Others that wait for its choice are told."""
        if self.size > 1 and not self.pools:
            self.ranks.share([-1])

    def blocks(self, count: int) -> list[tuple[slice, list[int]]]:
        """Which of this rank's `count` candidates of an epoch are selected from together with the other ranks' ones.

        Returns each block of them, and how many candidates each rank has in it. One block if this rank selects alone.
        """
        if not self.pools:
            return [(slice(None), [count])]
        counts = self._tell(count)
        share = max(1, _BLOCK // self.size)
        return [
            (slice(begin, begin + share), [min(max(0, other - begin), share) for other in counts])
            for begin in range(0, max(*counts, 1), share)
        ]

    def cannot_plan(self) -> None:
        """This rank cannot select from its epoch, and its own error follows. The others are told."""
        if self.pools:
            self.ranks.share([-1])

    def _tell(self, count: int) -> list[int]:
        """Every rank's number; an error if another rank could not give one."""
        counts = [int(number) for (number,) in self.ranks.share([count])]
        failed = [rank for rank, other in enumerate(counts) if other < 0]
        if failed:
            raise ValueError(f"rank {failed[0]} could not select from its candidates: see its own error for why")
        return counts
