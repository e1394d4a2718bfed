"""Which candidates of an epoch are loaded at all.

# n = candidates of a block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import AnyLedger
from selective_backprop.loader.index_stream import Chunk, contained
from selective_backprop.loader.topping_up import TopUp
from selective_backprop.types import Scorer, Selection

Select = Callable[[Tensor, Tensor | None], Selection]
"""Scores and ids of candidates in, selection out."""

BLOCK = 2**22
"""How many candidates are decided about together. A longer epoch is planned in several blocks, so that the memory that
a decision takes (some 90 bytes per candidate) does not grow with the epoch: only its ids and what is kept do."""

_NOTHING = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class IdBlock:
    """Consecutive candidate batches of an epoch."""

    ids: Tensor
    """(n,) int64: the ids of all these batches, in order."""
    sizes: Tensor
    """int64: how many ids each batch has."""


def id_blocks(batches: Iterable[Tensor], block: int | None = BLOCK) -> Iterator[IdBlock]:
    """Batches of ids, joined into blocks of `block` ids or a few more; into one block if it is None. At least one.

    >>> [block.ids.tolist() for block in id_blocks(torch.arange(5).split(2), block=3)]
    [[0, 1, 2, 3], [4]]
    """
    joined: list[Tensor] = []
    count, is_first = 0, True
    for ids in batches:
        joined.append(ids)
        count += ids.numel()
        if block is not None and count >= block:
            yield _join(joined)
            joined, count, is_first = [], 0, False
    if joined or is_first:
        yield _join(joined)


def _join(batches: list[Tensor]) -> IdBlock:
    return IdBlock(torch.cat([_NOTHING, *batches]), torch.tensor([len(ids) for ids in batches], dtype=torch.int64))


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
) -> tuple[list[Chunk], Tensor, int]:
    """Decide before loading about every candidate whose score is known.

    Returns the chunks to load; if there are none, the ids that are all skipped, and how many of these wait. At the
    start of the epoch, so that the plan does not depend on how far ahead the DataLoader's workers ask.

    Args:
        blocks: the epoch's candidates. Each block is decided about by itself.
        switched_on: whether selection is on for the i-th of so many batches.
        together: select is to be called even if there is nothing to choose from here, because other ranks call it
            too. There is one block then.
        waiting: rising ids that wait in the queue already. They are trained on in this epoch anyway, and skipped.
        top_up: adds candidates where too few are selected. These have the probability 1.
        unbiased: weights make up for what is left out by chance.
    """
    num_batches, num_ids = (sum(len(part) for part in parts) for parts in _columns(blocks))
    chunks: list[Chunk] = []
    tail, tail_waiting = _NOTHING, 0  # skipped, and not in a chunk yet
    first_batch = first_id = num_selected = 0
    must_train, known = False, True
    for number, block in enumerate(blocks, start=1):
        on = [switched_on(first_batch + i, num_batches) for i in range(len(block.sizes))]
        decision = _decide(
            block, on, scorer=scorer, select=select, ledger=ledger, epoch=epoch, together=together, waiting=waiting
        )
        num_selected += int(decision.load.sum())
        must_train = must_train or (scorer.must_train and bool(decision.scores.isnan().any()))
        known = known and bool(decision.decided[decision.load].all())
        if top_up is not None and number == len(blocks):
            decision.add(top_up, num_selected=num_selected, must_train=must_train, known=known, unbiased=unbiased)
        found = _chunks(block, decision, size=int(blocks[0].sizes[0]) if len(blocks[0].sizes) else 0)
        if found and len(tail):
            found[0] = replace(
                found[0],
                offered=torch.cat([tail, found[0].offered]),
                num_waiting=tail_waiting + found[0].num_waiting,
            )
            tail, tail_waiting = _NOTHING, 0
        if len(blocks) > 1:
            # Fractions are of the epoch, not of the block.
            share, before = len(block.ids) / num_ids, first_id / num_ids
            found = [replace(chunk, fraction=before + share * chunk.fraction) for chunk in found]
        if not found:
            tail, tail_waiting = torch.cat([tail, block.ids]), tail_waiting + int(decision.waits.sum())
        chunks += found
        first_batch += len(block.sizes)
        first_id += len(block.ids)
    if chunks and len(tail):
        # What is skipped at the end of the epoch belongs to its last chunk, or the epoch would seem to keep everything.
        chunks[-1] = replace(
            chunks[-1],
            offered=torch.cat([chunks[-1].offered, tail]),
            num_waiting=chunks[-1].num_waiting + tail_waiting,
            fraction=1.0,
        )
        tail, tail_waiting = _NOTHING, 0
    return chunks, tail, tail_waiting


def _columns(blocks: list[IdBlock]) -> tuple[list[Tensor], list[Tensor]]:
    return [block.sizes for block in blocks], [block.ids for block in blocks]


@dataclass
class _Decision:
    """What is decided about each candidate of a block; every tensor has n entries."""

    scores: Tensor
    """NaN where not known."""
    waits: Tensor
    """Whether it waits in the queue already."""
    open_for_choice: Tensor
    """Positions of the candidates that the policy chose among."""
    load: Tensor
    decided: Tensor
    """Whether it need not be scored any more."""
    weights: Tensor
    probabilities: Tensor
    weighted: bool = False
    """Whether the policy gave weights."""

    def add(self, top_up: TopUp, *, num_selected: int, must_train: bool, known: bool, unbiased: bool) -> None:
        """Load further candidates, where the epoch's training batches would not fill."""
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
        # What chance left out is in the weights of the others already: with a weight of its own it would count twice.
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
    ids, size = block.ids, len(block.ids)
    # Switched off: everything is trained on.
    decided = (~torch.tensor(switched_on, dtype=torch.bool)).repeat_interleave(block.sizes)
    scores = scorer.recall(ids, ledger.rows(ids), epoch)
    if not scorer.needs.selection_pass:
        decided |= scores.isnan()  # there is no other way to learn about them than to train on them
    waits = torch.zeros(size, dtype=torch.bool)
    if waiting is not None and len(waiting):
        waits = contained(ids, waiting)
    choice = (~decided & ~waits & ~scores.isnan()).nonzero().flatten()
    weights, probabilities = torch.ones(size), torch.ones(size, dtype=torch.float64)
    decision = _Decision(scores, waits, choice, ~waits, decided, weights, probabilities)
    if len(choice) or together:
        selection = select(scores[choice], ids[choice])
        selected = choice[selection.positions]
        decision.load[choice] = False
        decision.load[selected] = decided[selected] = True
        weights[selected] = selection.weights
        probabilities[choice] = selection.probabilities
        decision.weighted = not bool((selection.weights == 1).all())
    return decision


def _chunks(block: IdBlock, decision: _Decision, size: int) -> list[Chunk]:
    """What is loaded of a block, `size` candidates at a time; fractions are of the block."""
    ids, load, waits = block.ids, decision.load, decision.waits
    if load.all():
        ends = block.sizes.cumsum(0)  # nothing is skipped: the user's own batches
        loaded = torch.arange(len(ids))
    else:
        loaded = load.nonzero().flatten()
        ends = torch.arange(size, len(loaded) + size, size).clamp_(max=len(loaded))
    if not len(loaded):
        return []
    # Split, not sliced one by one: an epoch of a million ids has thousands of chunks.
    loaded_sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    offered_ends = loaded[ends - 1] + 1
    offered_ends[-1] = len(ids)  # with what is skipped at the end, or the epoch would seem to keep everything
    offered_sizes = offered_ends.diff(prepend=offered_ends.new_zeros(1)).tolist()
    offered = torch.split(ids, offered_sizes)
    waits_before = torch.cat([waits.new_zeros(1, dtype=torch.int64), waits.cumsum(0)])[offered_ends]
    num_waiting = waits_before.diff(prepend=waits_before.new_zeros(1)).tolist()
    fractions = (offered_ends / len(ids)).tolist()
    kept = (ids, decision.decided, decision.weights, decision.probabilities)
    columns = [torch.split(column[loaded], loaded_sizes) for column in kept]
    return [
        Chunk(part, passed, fraction, known, weight, chance, waits_here)
        for part, passed, fraction, known, weight, chance, waits_here in zip(
            columns[0], offered, fractions, *columns[1:], num_waiting, strict=True
        )
    ]
