"""Planning: decides before an epoch is loaded which of its candidates to load, by scores that are already known.

# n = candidates of a block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.loader.index_stream import Chunk, IdBlock, contained
from selective_backprop.loader.topping_up import TopUp
from selective_backprop.types import Scorer, Selection

Select = Callable[[Tensor, Tensor | None], Selection]
"""A function from the scores and ids of candidates to a selection."""

BLOCK = 2**22
"""Number of candidates that are decided about together. A longer epoch is planned in several blocks. A decision takes
some 90 bytes of memory per candidate, and with blocks this does not grow with the epoch."""

_NOTHING = torch.empty(0, dtype=torch.int64)


def id_blocks(batches: Iterable[IdBlock], block: int | None = BLOCK) -> Iterator[IdBlock]:
    """Regroup batches of ids into blocks of `block` ids or a few more; into a single block if `block` is None.

    There is at least one block, which may be empty.

    >>> batches = IdBlock(torch.arange(5), torch.tensor([2, 2, 1]))
    >>> [block.ids.tolist() for block in id_blocks([batches], block=3)]
    [[0, 1, 2, 3], [4]]
    """
    waiting: list[IdBlock] = []
    count, is_first = 0, True
    for group in batches:
        rest = group
        while block is not None and count + len(rest.ids) >= block:
            # The block ends with the batch that makes it full.
            head, rest = rest.cut(1 + int(torch.searchsorted(rest.sizes.cumsum(0), block - count)))
            yield IdBlock.join([*waiting, head])
            waiting, count, is_first = [], 0, False
        if len(rest.sizes):
            waiting.append(rest)
            count += len(rest.ids)
    if waiting or is_first:
        yield IdBlock.join(waiting)


def plan_epoch(
    blocks: list[IdBlock],
    switched_on: Callable[[int, int], bool],
    *,
    scorer: Scorer,
    select: Select,
    ledger: AnyLedger,
    epoch: int,
    together: bool = False,
    waiting: Tensor | None = None,
    top_up: TopUp | None = None,
    unbiased: bool = False,
) -> tuple[PlannedChunks, Tensor, int]:
    """Plan an epoch: decide before loading about every candidate whose score is known.

    Returns the chunks to load. If nothing is loaded, it also returns all ids, which are skipped, and how many of them
    wait in the queue; otherwise these two are empty. The whole epoch is planned when it begins, so that the plan does
    not depend on how far ahead the DataLoader's workers ask for indices.

    Args:
        blocks: the epoch's candidates. Each block is decided about by itself.
        switched_on: (batch number, number of batches) -> whether selection is on for this batch.
        scorer: knows the scores, from the ledger.
        select: selects among the candidates whose scores are known.
        ledger: what is known about each example.
        epoch: number of the epoch, from 0.
        together: whether several ranks plan together. Then `select` is called even without candidates, because all
            ranks must call it, and there is one block.
        waiting: rising ids of examples that already wait in the queue. They are skipped, because they are trained on in
            this epoch anyway.
        top_up: adds candidates if too few are selected. Added candidates have the probability 1.
        unbiased: whether the policy's weights make up for examples that are not selected.
    """
    num_batches, num_ids = (sum(len(part) for part in parts) for parts in _columns(blocks))
    size = int(blocks[0].sizes[0]) if len(blocks[0].sizes) else 0
    parts: list[_Part] = []
    tail, tail_waiting = _NOTHING, 0  # skipped ids that do not belong to a chunk yet
    first_batch = first_id = num_selected = 0
    must_train, known = False, True
    for number, block in enumerate(blocks, start=1):
        on = [switched_on(first_batch + i, num_batches) for i in range(len(block.sizes))]
        decision = _decide(
            block, on, scorer=scorer, select=select, ledger=ledger, epoch=epoch, together=together, waiting=waiting
        )
        num_selected += int(decision.load.count_nonzero())
        must_train = must_train or (scorer.must_train and bool(decision.scores.isnan().any()))
        known = known and not bool((decision.load & ~decision.decided).any())
        if top_up is not None and number == len(blocks):
            decision.add(top_up, num_selected=num_selected, must_train=must_train, known=known, unbiased=unbiased)
        if bool(decision.load.any()):
            part = _part(block, decision, size)
            if len(blocks) > 1:
                # Turn fractions of the block into fractions of the epoch.
                share, before = len(block.ids) / num_ids, first_id / num_ids
                part.fractions.mul_(share).add_(before)
            part.offer_before(tail, tail_waiting)
            parts.append(part)
            tail, tail_waiting = _NOTHING, 0
        else:
            tail, tail_waiting = torch.cat([tail, block.ids]), tail_waiting + int(decision.waits.sum())
        first_batch += len(block.sizes)
        first_id += len(block.ids)
    if parts and len(tail):
        # Ids skipped at the end of the epoch go to its last chunk. Otherwise the epoch would seem to keep everything.
        parts[-1].offer_after(tail, tail_waiting)
        tail, tail_waiting = _NOTHING, 0
    return PlannedChunks(parts), tail, tail_waiting


def _columns(blocks: list[IdBlock]) -> tuple[list[Tensor], list[Tensor]]:
    return [block.sizes for block in blocks], [block.ids for block in blocks]


class PlannedChunks:
    """The chunks of an epoch. Each is made when it is needed: all at once would take more memory than the plan."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part.ends) for part in self._parts)

    def __iter__(self) -> Iterator[Chunk]:
        for part in self._parts:
            yield from part.chunks()


@dataclass
class _Part:
    """The chunks of one block. c is their number."""

    offered: Tensor
    """All ids of the block, in order, skipped ones included."""
    offered_ends: Tensor
    """(c,) where each chunk ends in `offered`."""
    columns: list[Tensor]
    """Ids to load, whether each is already selected, weights and probabilities."""
    ends: Tensor
    """(c,) where each chunk ends in `columns`."""
    fractions: Tensor
    """(c,) float64: fraction of the epoch offered at the end of each chunk."""
    num_waiting: Tensor
    """(c,) number of ids of each chunk that were skipped because they already wait in the queue."""

    def offer_before(self, ids: Tensor, num_waiting: int) -> None:
        """Count these skipped ids as offered by the first chunk, before its own."""
        if len(ids):
            self.offered = torch.cat([ids, self.offered])
            self.offered_ends += len(ids)
            self.num_waiting[0] += num_waiting

    def offer_after(self, ids: Tensor, num_waiting: int) -> None:
        """Count these skipped ids as offered by the last chunk, which is then the last of the epoch."""
        self.offered = torch.cat([self.offered, ids])
        self.offered_ends[-1] += len(ids)
        self.num_waiting[-1] += num_waiting
        self.fractions[-1] = 1.0

    def chunks(self, together: int = 1024) -> Iterator[Chunk]:
        # Chunks are split in groups: slicing them one by one takes four times as long, all at once takes much memory.
        begin = offered_begin = 0
        split = zip(*(torch.split(column, together) for column in self._bounds()), strict=True)
        for ends, offered_ends, fractions, num_waiting in split:
            end, offered_end = int(ends[-1]), int(offered_ends[-1])
            sizes = ends.diff(prepend=ends.new_tensor([begin])).tolist()
            offered_sizes = offered_ends.diff(prepend=ends.new_tensor([offered_begin])).tolist()
            ids, *kept = (torch.split(column[begin:end], sizes) for column in self.columns)
            offered = torch.split(self.offered[offered_begin:offered_end], offered_sizes)
            columns = (ids, offered, fractions.tolist(), *kept, num_waiting.tolist())
            yield from map(Chunk, *columns)
            begin, offered_begin = end, offered_end

    def _bounds(self) -> tuple[Tensor, ...]:
        return self.ends, self.offered_ends, self.fractions, self.num_waiting


@dataclass
class _Decision:
    """What was decided about the candidates of a block. Tensors other than open_for_choice have n entries."""

    scores: Tensor
    """Scores; NaN where not known."""
    waits: Tensor
    """Whether each candidate already waits in the queue."""
    open_for_choice: Tensor
    """Positions of the candidates that the policy selected from."""
    load: Tensor
    """Whether to load each candidate."""
    decided: Tensor
    """Whether each candidate is selected already, so that it need not be scored after loading."""
    weights: Tensor
    probabilities: Tensor
    weighted: bool = False
    """Whether the policy gave weights other than 1."""

    def add(self, top_up: TopUp, *, num_selected: int, must_train: bool, known: bool, unbiased: bool) -> None:
        """Load further candidates if too few are selected to fill the epoch's training batches."""
        left = self.open_for_choice[~self.load[self.open_for_choice]]
        chosen = top_up.choose(
            self.scores[left],
            self.probabilities[left],
            num_selected=num_selected,
            must_train=must_train,
            known=known,
        )
        added = left[chosen]
        self.load[added] = self.decided[added] = True
        # The weights of the selected candidates already make up for these: a weight above 0 would count them twice.
        self.weights[added] = 0.0 if unbiased or self.weighted else 1.0
        self.probabilities[added] = 1.0


def _decide(
    block: IdBlock,
    switched_on: list[bool],
    *,
    scorer: Scorer,
    select: Select,
    ledger: AnyLedger,
    epoch: int,
    together: bool,
    waiting: Tensor | None,
) -> _Decision:
    """Decide about the candidates of one block; for the arguments see `plan_epoch`."""
    ids, size = block.ids, len(block.ids)
    scores = scorer.recall(ids, ledger.rows(ids), epoch)
    unknown, waits, decided = scores.isnan(), torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool)
    if not all(switched_on):  # while selection is off, everything is trained on
        decided = (~torch.tensor(switched_on, dtype=torch.bool)).repeat_interleave(block.sizes)
    if not scorer.needs.selection_pass:
        decided |= unknown  # without a selection pass, training is the only way to learn their losses
    if waiting is not None and len(waiting):
        waits = contained(ids, waiting)
    choice = (~(decided | waits | unknown)).nonzero().flatten()
    selection = None
    if len(choice) or together:
        # index_select and index_copy_ are faster than indexing.
        selection = select(scores.index_select(0, choice), ids.index_select(0, choice))
    # Made only after the selection, which needs the most memory.
    weights, probabilities = torch.ones(size), torch.ones(size, dtype=torch.float64)
    decision = _Decision(scores, waits, choice, ~waits, decided, weights, probabilities)
    if selection is not None:
        selected = choice.index_select(0, selection.positions)
        decision.load.index_fill_(0, choice, False).index_fill_(0, selected, True)
        decided.index_fill_(0, selected, True)
        probabilities.index_copy_(0, choice, selection.probabilities)
        decision.weighted = not bool((selection.weights == 1).all())
        if decision.weighted:
            weights[selected] = selection.weights
    return decision


def _part(block: IdBlock, decision: _Decision, size: int) -> _Part:
    """Cut the candidates of a block that are loaded, at least one, into chunks. Fractions are those of the block.

    size: candidates in a chunk.
    """
    ids, load, waits = block.ids, decision.load, decision.waits
    columns = [ids, decision.decided, decision.weights, decision.probabilities]
    if load.all():
        ends = block.sizes.cumsum(0)  # nothing is skipped, so the user's own batches stay as they are
        offered_ends = ends.clone()
    else:
        loaded = load.nonzero().flatten()
        columns = [column.index_select(0, loaded) for column in columns]
        ends = torch.arange(size, len(loaded) + size, size).clamp_(max=len(loaded))
        offered_ends = loaded[ends - 1] + 1
        offered_ends[-1] = len(ids)  # includes ids skipped at the end; else the epoch would seem to keep everything
    fractions = (offered_ends / len(ids)).to(torch.float64)
    if load.all() and len(ends) > 1 and not bool((block.sizes[:-1] == block.sizes[0]).all()):
        # Batches of different sizes, such as packed documents, count equally, as they do in plain training.
        fractions = torch.arange(1, len(ends) + 1, dtype=torch.float64) / len(ends)
    num_waiting = torch.zeros_like(ends)
    if waits.any():
        num_waiting = waits.cumsum(0)[offered_ends - 1].diff(prepend=num_waiting[:1])
    return _Part(ids, offered_ends, columns, ends, fractions, num_waiting)
