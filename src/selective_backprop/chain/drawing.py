"""Drawing: the candidates of a sampler's epoch, by the user's own sampler or in a new random order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from selective_backprop.chain.held_losses import HeldLosses
from selective_backprop.chain.id_batches import IdBatch, IdBatches, evened
from selective_backprop.chain.plan import decide, gather_drawn
from selective_backprop.ranks import fails_on_all
from selective_backprop.run import Run

_PARTS_OF_AN_EPOCH = 100  # how finely schedules divide an epoch if the batch size is not known


def plan_epoch(
    run: Run, source: Any, order: torch.Generator, num_examples: int, *, batch_size: int | None, drop_last: bool
) -> HeldLosses:
    """Draw this epoch's candidates, and decide which of them are handed out. All ranks must call this.

    order: draws the order, if the source is but the size of the data set.
    """
    run.stats.switch("selecting")
    with fails_on_all(run.ranks, "could not plan this epoch"):
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "this loop runs without gradients (torch.no_grad or inference_mode), but a SelectiveSampler gives out "
                "selected examples for training: evaluate over a second DataLoader"
            )
        drawn = _draw(source, order, num_examples, run)
    size = batch_size or max(1, -(-len(drawn) // _PARTS_OF_AN_EPOCH))
    everyone = gather_drawn(run, IdBatches.of(torch.split(drawn, size) if len(drawn) else []))
    # The user's loader may have drop_last, and then fewer ids than a batch would be none.
    decision = decide(run, everyone, at_least=batch_size or 1, fewest=batch_size or 1)
    for one in everyone:
        run.offer(one.ids)
    parts = evened(decision.loads, run.ranks.size)
    count = min(len(part.ids) for part in parts)
    if batch_size is not None and count > batch_size > 1:
        if drop_last:
            count -= count % batch_size
        elif not decision.is_plain:
            count -= count % batch_size == 1  # BatchNorm cannot train on a last batch of a single example
    dropped = sum(len(part.ids) - count for part in parts)
    run.count(offered=dropped, dropped=dropped)
    run.stats.switch("")
    plans = [IdBatch(part.ids[:count], None if part.weights is None else part.weights[:count]) for part in parts]
    return HeldLosses(run.epoch, plans, run.ranks.rank, sum(len(one.ids) for one in everyone) - dropped)


def _draw(source: Any, order: torch.Generator, num_examples: int, run: Run) -> Tensor:
    """Draw this rank's candidates, in order."""
    keep = run.method.keep
    if isinstance(source, int):
        ids = torch.randperm(num_examples, generator=order)
        ids = ids if keep is None else ids[keep[ids]]
        return ids[run.ranks.rank :: run.ranks.size]
    ids = _checked(source, num_examples)
    return ids if keep is None else ids[keep[ids]]


def _checked(source: Iterable[Any], num_examples: int) -> Tensor:
    """Draw an epoch's ids from the user's sampler. Raises if they are not ids of the data set."""
    drawn = list(source)
    try:
        ids = torch.tensor(drawn) if drawn else torch.empty(0, dtype=torch.int64)
    except (TypeError, ValueError):
        ids = torch.empty(0)
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"your sampler must yield whole numbers, the ids of examples, got {drawn[:3]!r:.100}")
    if not len(ids):
        raise ValueError("your sampler yielded no ids: an epoch must offer at least one example")
    wrong = ids[(ids < 0) | (ids >= num_examples)]
    if len(wrong):
        raise ValueError(
            f"your sampler yielded the ids {wrong[:5].tolist()}, but the data set has {num_examples} examples: ids are "
            f"from 0 to {num_examples - 1}. If the data set is larger, pass num_examples="
        )
    return ids.to(torch.int64)
