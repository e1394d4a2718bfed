"""The plan of an epoch: the ids that every rank loads, decided at its start. Every rank makes the plan of all ranks.

# N = candidates of all ranks, B = training batch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.chain.id_batches import IdBatch, IdBatches, cut, evened, join
from selective_backprop.run import Run
from selective_backprop.step_losses import NO_IDS

_BLOCK = 2**22  # candidates that are decided about at once: a decision takes some 90 bytes of memory for each


@dataclass(frozen=True)
class Plan:
    """What is loaded in an epoch."""

    batches: list[IdBatches]
    """By rank: the batches to load, in order."""
    offered: int
    """Number of candidates of all ranks, skipped ones included."""
    dropped: int = 0
    """Number of ids of all ranks that fill no batch, and are left out for drop_last."""

    def __len__(self) -> int:
        """Return the number of batches on the rank that has most."""
        return max(map(len, self.batches))

    def sizes(self) -> list[int]:
        """Return how many ids all ranks together load in each step."""
        total = torch.zeros(len(self), dtype=torch.int64)
        for batches in self.batches:
            total[: len(batches)] += batches.sizes
        return total.tolist()

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return what is left to load after `place` steps."""
        return {"batches": [batches.after(place).state_dict() for batches in self.batches], "offered": self.offered}

    @staticmethod
    def from_state_dict(state: dict[str, Any], num_ranks: int) -> Plan:
        """Go on with what is left of an epoch. If the number of ranks is another one, they divide it anew."""
        left = [IdBatches.from_state_dict(one) for one in state["batches"]]
        if len(left) != num_ranks:
            batch_size = max([1, *(int(one.sizes.max()) for one in left if len(one))])
            left = cut(evened([one.all for one in left], num_ranks), batch_size, drop_last=False)
        return Plan(left, state["offered"])


class Decision(NamedTuple):
    """What the method decided about an epoch's candidates."""

    loads: list[IdBatch]
    """By rank: the ids to load of those that it drew, in their order."""
    is_plain: bool
    """Whether every candidate is loaded once and with weight 1, as in plain training."""


def gather_drawn(run: Run, own: IdBatches) -> list[IdBatches]:
    """Gather the batches of ids that each rank's sampler drew. All ranks must call this."""
    ids, sizes = (run.ranks.gather(column) for column in (own.ids, own.sizes))
    return [IdBatches(IdBatch(one), size) for one, size in zip(ids, sizes, strict=True)]


def decide(run: Run, drawn: list[IdBatches], *, at_least: int, fewest: int) -> Decision:
    """Decide which candidates are loaded. Those without a score are: training on them is how it becomes known.

    Args:
        run: its policy selects among candidates of all ranks. It writes down their chances.
        drawn: the user's batches of ids, by rank.
        at_least: an epoch that would load fewer than `fewest` ids on a rank loads this many: the highest scores.
        fewest: see above.
    """
    ids = torch.cat([batches.ids for batches in drawn])
    on = _is_on(run, drawn)
    blocks: list[_Block] = []
    for rows in _blocks(len(ids)):
        if blocks:  # what a block skipped takes 21 bytes per candidate, and only that of the last block is needed
            blocks[-1] = blocks[-1].without_candidates()
        blocks.append(_decide(run, ids[rows], None if on is None else on[rows]))
    loads = join([block.loads for block in blocks])
    begins = range(0, len(ids) + 1, _BLOCK)
    found = torch.cat([block.rows + begin for block, begin in zip(blocks, begins, strict=False)])
    is_plain = loads.weights is None and len(found) == len(ids) and all(block.keeps_all for block in blocks)
    bounds = torch.tensor([len(batches.ids) for batches in drawn]).cumsum(0)[:-1]
    parts = [loads.part(slice(*ends)) for ends in _pairs(torch.searchsorted(found, bounds).tolist(), len(found))]
    if len(found) < fewest * len(drawn):
        weight = 0.0 if run.policy.weighting == "unbiased" else 1.0  # 0: other weights make up for what is skipped
        more = blocks[-1].best(at_least * len(drawn) - len(found))
        added = IdBatch(more, torch.full((len(more),), weight) if weight != 1 else None)
        parts = [join([part, one]) for part, one in zip(parts, evened([added], len(drawn)), strict=True)]
        is_plain = False
    run.stats.note = run.share_check.why_all(run.epoch, run.scorer.explanation())
    return Decision(parts, is_plain)


def make_plan(run: Run, drawn: list[IdBatches], batch_size: int, *, passes: bool, drop_last: bool) -> Plan:
    """Plan the batches of an epoch; in a scored epoch, which is no plan, load what was drawn.

    Args:
        run: as for `decide`.
        drawn: the user's batches of ids, by rank.
        batch_size: B.
        passes: whether the user's own batches may be training batches if nothing is skipped.
        drop_last: whether ids that fill no batch are left out.
    """
    num_candidates = sum(len(batches.ids) for batches in drawn)
    if not run.scorer.plans(run.epoch):
        return Plan(drawn, num_candidates)
    decision = decide(run, drawn, at_least=batch_size, fewest=batch_size if drop_last else min(2, batch_size))
    if decision.is_plain and passes and len({len(batches) for batches in drawn}) == 1:
        return Plan(drawn, num_candidates)
    batches = cut(evened(decision.loads, len(drawn)), batch_size, drop_last=drop_last)
    selected, loaded = (sum(len(one.ids) for one in some) for some in (decision.loads, batches))
    return Plan(batches, num_candidates, selected - loaded)


class _Block(NamedTuple):
    """What was decided about a block of candidates."""

    loads: IdBatch
    rows: Tensor
    """Where in the block these are."""
    keeps_all: bool
    ids: Tensor
    """The candidates that the policy decided about, with their scores and chances, and whether they were skipped."""
    scores: Tensor
    probabilities: Tensor
    skipped: Tensor

    def without_candidates(self) -> _Block:
        """Leave out what only `best` needs."""
        return self._replace(ids=NO_IDS, scores=NO_IDS, probabilities=NO_IDS, skipped=NO_IDS)

    def best(self, count: int) -> Tensor:
        """Return the ids of `count` skipped candidates: the highest scores that could have been selected come first.

        Outliers come last: the policy gives them a low chance on purpose.
        """
        places = self.skipped.nonzero().flatten()
        scores = self.scores[places]
        preference = 1 + (self.probabilities[places] > 0).to(torch.int64)
        preference[functional.is_outlier(functional.excess_loss(scores))] = 0
        order = scores.argsort(descending=True, stable=True)
        order = order[preference[order].argsort(descending=True, stable=True)]
        return self.ids[places[order[:count]]]


def _blocks(count: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, max(1, count), _BLOCK)]


def _pairs(bounds: list[int], end: int) -> list[tuple[int, int]]:
    return list(zip([0, *bounds], [*bounds, end], strict=True))


def _is_on(run: Run, drawn: list[IdBatches]) -> Tensor | None:
    """Return (N,) bool: whether selection is on for each candidate. None if it is on for all of them."""
    schedule, epoch, num_epochs = run.schedule, run.epoch, run.num_epochs
    if all(schedule.on_in_whole_epoch(epoch, len(batches), num_epochs) for batches in drawn):
        return None
    found = []
    for batches in drawn:
        count = len(batches)
        on = [schedule.is_on(epoch + i / count, i, num_epochs) for i in range(count)]
        found.append(torch.tensor(on, dtype=torch.bool).repeat_interleave(batches.sizes))
    return torch.cat(found)


def _decide(run: Run, ids: Tensor, on: Tensor | None) -> _Block:
    scores = run.scorer.recall(ids, run.ledger.rows(ids), run.epoch)
    is_open = ~scores.isnan() if on is None else on & ~scores.isnan()
    places = is_open.nonzero().flatten()
    # index_select and index_copy_ are faster than indexing.
    scores, open_ids = scores.index_select(0, places), ids.index_select(0, places)
    selection = run.select(scores, open_ids)
    chosen = places.index_select(0, selection.positions)
    if run.policy.with_replacement:
        loaded = torch.cat([(~is_open).nonzero().flatten(), chosen]).sort(stable=True).values
    else:
        loaded = is_open.logical_not_().index_fill_(0, chosen, True).nonzero().flatten()
    weights = chances = None
    if not bool((selection.weights == 1).all()):
        weights = torch.ones(len(ids)).index_copy_(0, chosen, selection.weights).index_select(0, loaded)
    if not bool((selection.probabilities == 1).all()):
        every = torch.ones(len(ids), dtype=torch.float64).index_copy_(0, places, selection.probabilities)
        chances = every.index_select(0, loaded)
    skipped = torch.ones(len(places), dtype=torch.bool).index_fill_(0, selection.positions, False)
    keeps_all = selection.keeps_all(len(places))
    loads = IdBatch(ids.index_select(0, loaded), weights, chances)
    return _Block(loads, loaded, keeps_all, open_ids, scores, selection.probabilities, skipped)
