"""Rounds: all ranks go through their candidates together, and each knows how many the others have and select.

# k = number of ranks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from selective_backprop.distributed.ranks import Ranks
from selective_backprop.loader.loading import Loaded
from selective_backprop.types import Candidates, Selection

Scope = Literal["global", "local"]
Choose = Callable[[Tensor, Tensor | None], Selection]
"""Scores and groups of candidates in, selection out."""
Check = Callable[[], object]
"""Raises an error that names this rank's examples whose scores cannot be used."""

_NOTHING = Candidates(None, None, 0)


class Rounds:
    """One candidate batch of every rank at a time; a rank that has no more of them brings none.

    All ranks know of each other how many candidates they have and how many of these were selected, so that they agree
    on how many training batches are full without a further word.

    Args:
        ranks: who takes part.
        scope: "global" selects among the candidates of all ranks together, as one process would: each rank does so for
            all of them, with the same random numbers, and takes its own. "local" selects on each rank by itself.
        block: how many candidates are selected from at once when a whole epoch is; 16 MB of scores.
    """

    def __init__(self, ranks: Ranks, scope: Scope, block: int = 2**22) -> None:
        if scope not in ("global", "local"):
            raise ValueError(f"scope must be 'global' or 'local', got {scope!r}")
        self.ranks = ranks
        self.scope = scope
        self.num_batches: int | None = None
        """Candidate batches of an epoch, on the rank that has most of them; None if not known."""
        self.number = 0
        """Rounds of this epoch so far."""
        self.has_offered = False
        """Whether a rank has had a candidate so far; a rank whose own were all pruned takes part without any."""
        self.on = False
        """Whether selection is on in this round."""
        self.probing = False
        """Whether candidates of this round are scored although selection is off."""
        self.sizes = [0] * ranks.size
        """Candidates loaded for this round, by rank."""
        self.offered = [0] * ranks.size
        """The same, with those that were skipped before loading, except where they wait in the queue already."""
        self.undecided = [0] * ranks.size
        """How many of the loaded ones have to be scored."""
        self.meanwhile: Callable[[], Any] = lambda: None
        """Called while scores are on their way."""
        self._chosen = [0] * ranks.size  # of the undecided
        self._chosen_are_all = True  # of them, each once
        self._block = block

    @property
    def selected(self) -> list[int]:
        """How many candidates of this round are to be trained on, by rank."""
        parts = zip(self.sizes, self.undecided, self._chosen, strict=True)
        return [size - undecided + chosen for size, undecided, chosen in parts]

    @property
    def keep_all(self) -> bool:
        """Whether every candidate of this round is to be trained on, once, on all ranks."""
        return self._chosen_are_all and self.selected == self.offered

    def meet(self, loaded: Loaded | None, *, on: bool, probing: bool = False, skipped: int = 0) -> Loaded | None:
        """This rank's candidates for the next round, which may be none; None when no rank has any more.

        skipped: how many candidates this rank has left out if there was not one in the whole epoch to load.
        on, probing: what this rank's schedule says. Rank 0's counts: a schedule may go by losses or by the clock, which
            differ.
        """
        if loaded is None:
            own = [-1, skipped, 0, 1.0]
        else:
            chunk, size = loaded.chunk, loaded.candidates.size
            planned = -1 if chunk is None or chunk.decided is None else int((~chunk.decided).sum())
            offered_here = size if chunk is None else len(chunk.offered) - chunk.num_waiting
            own = [size, offered_here, planned, loaded.fraction]
        header = torch.tensor([*own, on + 2 * probing], dtype=torch.float64)
        sizes, offered, planned_, fractions, votes = torch.stack(
            self.ranks.gather(header, [len(header)] * self.ranks.size)
        ).unbind(1)
        self.has_offered = self.has_offered or bool((offered > 0).any())
        self.offered = _ints(offered)
        if bool((sizes < 0).all()):
            return None
        self.number += 1
        self.on, self.probing = int(votes[0]) % 2 == 1, int(votes[0]) >= 2
        sizes = sizes.clamp(min=0)
        scored = torch.where(planned_ < 0, sizes * self.on, planned_)
        self.sizes, self.undecided = _ints(sizes), _ints(scored)
        self._chosen, self._chosen_are_all = [0] * self.ranks.size, True
        # The slowest rank's, so that learning rates by progress are the same everywhere.
        fraction = float(fractions.min())
        if loaded is None:
            return Loaded(_NOTHING, None, self.number - 1, fraction)
        return replace(loaded, fraction=fraction)

    def select(self, scores: Tensor, groups: Tensor | None, choose: Choose, check: Check = lambda: None) -> Selection:
        """Which of this rank's undecided candidates of the round to train on."""
        if self.scope == "local":
            try:
                check()
                selection = choose(scores, groups) if len(scores) else _none()
            except Exception:
                self._tell(-1, complain=False)  # or the others would wait for it
                raise
            told = self._tell(2 * len(selection.positions) + selection.keeps_all(len(scores)))
            self._chosen, self._chosen_are_all = [number // 2 for number in told], all(number % 2 for number in told)
            return selection
        selection, self._chosen = self._together(scores, groups, choose, check, self.undecided, self.meanwhile)
        return selection

    def select_planned(
        self, scores: Tensor, groups: Tensor | None, choose: Choose, check: Check = lambda: None
    ) -> Selection:
        """Which of this rank's candidates of a whole epoch to load."""
        if self.scope == "local":
            check()
            return choose(scores, groups) if len(scores) else _none()
        try:
            check()
        except Exception:
            self._tell(-1, complain=False)  # or the others would wait for it
            raise
        counts = self._tell(len(scores))
        share = max(1, self._block // self.ranks.size)
        parts = []
        for begin in range(0, max(*counts, 1), share):
            own = slice(begin, begin + share)
            in_block = [min(max(0, count - begin), share) for count in counts]
            in_groups = groups[own] if groups is not None else None
            part, _ = self._together(scores[own], in_groups, choose, lambda: None, in_block)
            parts.append(replace(part, positions=part.positions + begin))
        return Selection(*(torch.cat([getattr(part, name) for part in parts]) for name in _FIELDS))

    def _tell(self, count: int, *, complain: bool = True) -> list[int]:
        """Every rank's number; below 0 from one that failed.

        complain: raise for another rank that failed. Not for a rank that has failed itself: its own error says more.
        """
        counts = _ints(torch.cat(self.ranks.gather(torch.tensor([count]), [1] * self.ranks.size)))
        failed = [rank for rank, other in enumerate(counts) if other < 0 and rank != self.ranks.rank]
        if failed and complain:
            raise ValueError(f"rank {failed[0]} could not select from its candidates: see its own error for why")
        return counts

    def _together(
        self,
        scores: Tensor,
        groups: Tensor | None,
        choose: Choose,
        check: Check,
        counts: list[int],
        meanwhile: Callable[[], Any] = lambda: None,
    ) -> tuple[Selection, list[int]]:
        """Select from the candidates of all ranks, and give this rank's part; and how many each rank has."""
        if not any(counts):
            return _none(), [0] * self.ranks.size
        finish = self.ranks.start_gather(scores, counts)
        meanwhile()
        parts = finish()
        check()  # only now that the others have these scores: they would wait for them in vain
        for rank, part in enumerate(parts):
            if rank != self.ranks.rank and not bool(part.isfinite().all()):
                raise ValueError(f"rank {rank} has scores that are not finite: see its own error for which examples")
        all_groups = None if groups is None else torch.cat(self.ranks.gather(groups, counts))
        selection = choose(torch.cat(parts), all_groups)
        self._chosen_are_all = selection.keeps_all(sum(counts))
        ends = torch.tensor([0, *counts]).cumsum(0)
        bounds = torch.searchsorted(selection.positions, ends)
        begin, end = ends[self.ranks.rank : self.ranks.rank + 2].tolist()
        own = slice(*bounds[self.ranks.rank : self.ranks.rank + 2].tolist())
        mine = Selection(selection.positions[own] - begin, selection.weights[own], selection.probabilities[begin:end])
        return mine, bounds.diff().tolist()


_FIELDS = ("positions", "weights", "probabilities")


def _none() -> Selection:
    return Selection(torch.empty(0, dtype=torch.int64), torch.empty(0), torch.empty(0, dtype=torch.float64))


def _ints(values: Tensor) -> list[int]:
    return [int(value) for value in values]
