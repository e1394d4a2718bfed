"""Which candidates of an epoch are loaded at all.

# M = candidates of the epoch
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selective_backprop.sampling import Chunk, contained
from selective_backprop.sharded_ledger import AnyLedger
from selective_backprop.topping_up import TopUp
from selective_backprop.types import Scorer, Selection

Select = Callable[[Tensor, Tensor | None], Selection]
"""Scores and ids of candidates in, selection out."""


def plan_epoch(
    batches: list[Tensor],
    switched_on: list[bool],
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
    """Decide before loading about every candidate whose score is known, for the whole epoch at once.

    Returns the chunks to load; if there are none, the ids that are all skipped, and how many of these wait. At the
    start of the epoch, so that the plan does not depend on how far ahead the DataLoader's workers ask.

    Args:
        together: select is to be called even if there is nothing to choose from here, because other ranks call it too.
        waiting: rising ids that wait in the queue already. They are trained on in this epoch anyway, and skipped.
        top_up: adds candidates where too few are selected. These have the probability 1.
        unbiased: weights make up for what is left out by chance.
    """
    nothing = torch.empty(0, dtype=torch.int64)  # all of one rank's candidates may be pruned
    sizes = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    ids = torch.cat([nothing, *batches])
    decided = (~torch.tensor(switched_on, dtype=torch.bool)).repeat_interleave(
        sizes
    )  # switched off: everything is trained on
    scores = scorer.recall(ids, ledger.rows(ids), epoch)
    if not scorer.needs.selection_pass:
        decided |= scores.isnan()  # there is no other way to learn about them than to train on them
    waits = torch.zeros(len(ids), dtype=torch.bool)
    if waiting is not None and len(waiting):
        waits = contained(ids, waiting)
    open_for_choice = (~decided & ~waits & ~scores.isnan()).nonzero().flatten()
    load = ~waits
    weights, probabilities = torch.ones(len(ids)), torch.ones(len(ids), dtype=torch.float64)
    weighted = False
    if len(open_for_choice) or together:
        selection = select(scores[open_for_choice], ids[open_for_choice])
        selected = open_for_choice[selection.positions]
        load[open_for_choice] = False
        load[selected] = decided[selected] = True
        weights[selected] = selection.weights
        weighted = not bool((selection.weights == 1).all())
        probabilities[open_for_choice] = selection.probabilities
    if top_up is not None:
        left = open_for_choice[~load[open_for_choice]]
        added = left[
            top_up.choose(
                scores[left],
                probabilities[left],
                num_selected=int(load.sum()),
                must_train=getattr(scorer, "must_train", False) and bool(scores.isnan().any()),
                known=bool(decided[load].all()),
            )
        ]
        load[added] = decided[added] = True
        # What chance left out is in the weights of the others already: with a weight of its own it would count twice.
        weights[added] = 0.0 if unbiased or weighted else 1.0
        probabilities[added] = 1.0
    if load.all():
        ends = sizes.cumsum(0)  # nothing is skipped: the user's own batches
        loaded = torch.arange(len(ids))
    else:
        loaded = load.nonzero().flatten()
        size = len(batches[0])
        ends = torch.arange(size, len(loaded) + size, size).clamp_(max=len(loaded))
    if not len(loaded):
        return [], ids, int(waits.sum())
    # Split, not sliced one by one: an epoch of a million ids has thousands of chunks.
    loaded_sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    offered_ends = loaded[ends - 1] + 1
    offered_ends[-1] = len(ids)  # with what is skipped at the end, or the epoch would seem to keep everything
    offered_sizes = offered_ends.diff(prepend=offered_ends.new_zeros(1)).tolist()
    offered = torch.split(ids, offered_sizes)
    waits_before = torch.cat([waits.new_zeros(1, dtype=torch.int64), waits.cumsum(0)])[offered_ends]
    num_waiting = waits_before.diff(prepend=waits_before.new_zeros(1)).tolist()
    fractions = (offered_ends / len(ids)).tolist()
    columns = [torch.split(column[loaded], loaded_sizes) for column in (ids, decided, weights, probabilities)]
    chunks = [
        Chunk(part, passed, fraction, known, weight, chance, waits_here)
        for part, passed, fraction, known, weight, chance, waits_here in zip(
            columns[0], offered, fractions, *columns[1:], num_waiting, strict=True
        )
    ]
    return chunks, nothing, 0
