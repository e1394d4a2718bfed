"""Plans: the ids that an epoch loads, decided at its start by scores that the ledger already has.

# n = candidates of this rank, k = number of ranks, K = ids to load
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.distributed.agreement import fails_on_all
from selective_backprop.distributed.balance import even_columns
from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.distributed.team import Team
from selective_backprop.losses import require_finite
from selective_backprop.sampler.id_batches import (
    NO_IDS,
    IdBatches,
    join_columns,
    ones_if_none,
    training_batch_sizes,
)
from selective_backprop.sampler.parts import Parts
from selective_backprop.types import Selection


@dataclass(frozen=True)
class Plan:
    """The ids that one rank loads in an epoch, in the order of the user's sampler."""

    ids: Tensor
    """(K,) int64: the ids to load."""
    weights: Tensor | None
    """(K,) float32: the weight of each id in the training loss; None if all are 1."""
    probabilities: Tensor | None
    """(K,) float64: the chance that each id had to be selected; None if all are 1."""
    num_offered: int
    """Number of this rank's candidates, skipped ones included."""
    counts: list[int]
    """K of every rank. They differ by one at most."""
    keeps_all: bool
    """Whether every rank loads each of its candidates once and with weight 1, as plain training does."""
    note: str
    """Why the epoch is trained on as a whole, if the method chose so; else empty."""

    def batches(self, batch_size: int, *, drop_last: bool) -> IdBatches:
        """Cut the plan into training batches, equally many on every rank; see `training_batch_sizes`."""
        sizes = training_batch_sizes(len(self.ids), batch_size, drop_last=drop_last, counts=self.counts)
        count = int(sizes.sum())
        columns = (None if column is None else column[:count] for column in (self.weights, self.probabilities))
        return IdBatches(self.ids[:count], sizes, *columns)


class Planner:
    """Plans epochs. Ids without a score are loaded: training on them is how their score becomes known.

    Args:
        parts: the scorer that recalls scores, the policy that selects and the schedule.
        ledger: what is known about each example.
        team: the ranks that train together. They select from the candidates of all of them.
    """

    def __init__(self, parts: Parts, ledger: AnyLedger, team: Team) -> None:
        self._parts, self._ledger, self._team = parts, ledger, team

    def plan(self, candidates: IdBatches, epoch: int, *, at_least: int = 1, drop_last: bool = False) -> Plan:
        """Plan an epoch. All ranks must call this.

        Args:
            candidates: the user's batches of ids for this epoch, in their order.
            epoch: number of the epoch, from 0.
            at_least: an epoch that would load next to nothing loads this many ids on each rank: those with the highest
                scores.
            drop_last: whether fewer ids than `at_least` are nothing, because a batch that is not full is dropped.
        """
        ids, parts = candidates.ids, self._parts
        parts.policy.begin_epoch(epoch, parts.num_epochs)
        on = self._is_on(candidates.sizes, epoch)
        loads: list[_Loads] = []
        for block in self._team.blocks(len(ids)):
            # Large epochs are planned in blocks: a decision takes some 90 bytes of memory per candidate.
            if loads:  # what a block skipped takes 21 of them, and only that of the last block is needed
                loads[-1] = dataclasses.replace(loads[-1], skipped=_NOTHING)
            loads.append(self._decide(ids[block], None if on is None else on[block], epoch))
        found = loads[0] if len(loads) == 1 else _Loads.join(loads)
        everyone = self._team.ranks.share([len(found.ids), found.is_plain])
        counts = [int(count) for count, _ in everyone]
        fewest = at_least if drop_last else min(2, at_least)  # BatchNorm cannot train on a single example
        if sum(counts) < fewest * self._team.size:
            found = found.topped_up(at_least, weight=0.0 if parts.policy.weighting == "unbiased" else 1.0)
            counts = self._team.count(len(found.ids))
        keeps_all = all(plain for _, plain in everyone)
        if max(counts) - min(counts) > 1:
            found, keeps_all = found.evened(self._team, counts), False
            counts = self._team.count(len(found.ids))
        note = parts.why_all(epoch)
        return Plan(found.ids, found.weights, found.probabilities, len(ids), counts, keeps_all, note)

    def _is_on(self, sizes: Tensor, epoch: int) -> Tensor | None:
        """Return (n,) bool: whether selection is on for each candidate. None if it is on for all of them."""
        schedule, num_epochs, count = self._parts.schedule, self._parts.num_epochs, len(sizes)
        if schedule.on_in_whole_epoch(epoch, count, num_epochs):
            return None
        on = torch.tensor([schedule.is_on(epoch + i / count, i, num_epochs) for i in range(count)], dtype=torch.bool)
        return on.repeat_interleave(sizes)

    def _decide(self, ids: Tensor, on: Tensor | None, epoch: int) -> _Loads:
        """Decide about the candidates of one block. All ranks must call this."""
        scores = self._parts.scorer.recall(ids, self._ledger.rows(ids), epoch)
        is_open = ~scores.isnan() if on is None else on & ~scores.isnan()
        places = is_open.nonzero().flatten()
        # index_select and index_copy_ are faster than indexing.
        scores, open_ids = scores.index_select(0, places), ids.index_select(0, places)
        selection = self._select(scores, open_ids)
        self._ledger.record_probabilities(open_ids, selection.probabilities)
        chosen = places.index_select(0, selection.positions)
        if self._parts.policy.with_replacement:
            loaded = torch.cat([(~is_open).nonzero().flatten(), chosen]).sort(stable=True).values
        else:
            loaded = is_open.logical_not_().index_fill_(0, chosen, True).nonzero().flatten()
        weights = None
        if not bool((selection.weights == 1).all()):
            weights = torch.ones(len(ids)).index_copy_(0, chosen, selection.weights).index_select(0, loaded)
        probabilities = None
        if not bool((selection.probabilities == 1).all()):
            chances = torch.ones(len(ids), dtype=torch.float64).index_copy_(0, places, selection.probabilities)
            probabilities = chances.index_select(0, loaded)
        skipped = torch.ones(len(places), dtype=torch.bool).index_fill_(0, selection.positions, False)
        others = _Skipped(open_ids, scores, selection.probabilities, skipped)
        is_plain = weights is None and len(loaded) == len(ids) and selection.keeps_all(len(places))
        return _Loads(ids.index_select(0, loaded), weights, probabilities, others, is_plain)

    def _select(self, scores: Tensor, ids: Tensor) -> Selection:
        """Select among this rank's candidates, together with those of the other ranks. All ranks must call this."""
        parts, team = self._parts, self._team
        with fails_on_all(team.ranks, "could not plan this epoch"):
            require_finite(scores, ids, parts.score_is)
            groups = parts.groups_of(ids)
        counts = team.count(len(scores))
        everyone = team.pool(scores, counts)
        if groups is not None:
            groups = team.pool(groups, counts)
        return team.own_part(parts.select(everyone, groups, own=scores, ids=ids), counts)


@dataclass(frozen=True)
class _Skipped:
    """The candidates of a block that the policy decided about, to find more of them if too few were selected."""

    ids: Tensor
    scores: Tensor
    probabilities: Tensor
    mask: Tensor
    """Whether each of them was not selected."""

    def best(self, count: int) -> Tensor:
        """Return the ids of `count` skipped candidates: the highest scores that could have been selected come first.

        Outliers come last: the policy gives them a low chance on purpose.
        """
        places = self.mask.nonzero().flatten()
        scores = self.scores[places]
        preference = 1 + (self.probabilities[places] > 0).to(torch.int64)
        preference[functional.is_outlier(functional.excess_loss(scores))] = 0
        order = scores.argsort(descending=True, stable=True)
        order = order[preference[order].argsort(descending=True, stable=True)]
        return self.ids[places[order[:count]]]


_NOTHING = _Skipped(NO_IDS, torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.bool))


@dataclass(frozen=True)
class _Loads:
    """What to load of a block, or of the whole epoch; see `Plan`."""

    ids: Tensor
    weights: Tensor | None
    probabilities: Tensor | None
    skipped: _Skipped
    """The candidates that are not loaded; of the last block only."""
    is_plain: bool
    """Whether every candidate is loaded once and with weight 1."""

    @staticmethod
    def join(parts: list[_Loads]) -> _Loads:
        ids, sizes = torch.cat([part.ids for part in parts]), [len(part.ids) for part in parts]
        weights = join_columns([part.weights for part in parts], sizes, torch.float32)
        chances = join_columns([part.probabilities for part in parts], sizes, torch.float64)
        return _Loads(ids, weights, chances, parts[-1].skipped, all(part.is_plain for part in parts))

    def _filled(self) -> tuple[Tensor, Tensor]:
        """Return the weights and the probabilities, with ones where they are None."""
        count = len(self.ids)
        weights = ones_if_none(self.weights, count, torch.float32)
        return weights, ones_if_none(self.probabilities, count, torch.float64)

    def topped_up(self, at_least: int, *, weight: float) -> _Loads:
        """Load further ids until there are `at_least`. They have the probability 1.

        weight: 0 if the weights of the others already make up for what is skipped.
        """
        added = self.skipped.best(max(0, at_least - len(self.ids)))
        weights, chances = self._filled()
        weights = torch.cat([weights, torch.full((len(added),), weight)])
        chances = torch.cat([chances, torch.ones(len(added), dtype=torch.float64)])
        same = bool((weights == 1).all())
        return _Loads(torch.cat([self.ids, added]), None if same else weights, chances, self.skipped, is_plain=False)

    def evened(self, team: Team, counts: list[int]) -> _Loads:
        """Move ids between ranks until all load equally many, give or take one. All ranks must call this."""
        ids, weights, chances = even_columns([self.ids, *self._filled()], counts, team.ranks)
        return _Loads(ids, weights, chances, self.skipped, is_plain=False)
