"""The losses of training steps, on their way from all ranks to the ledger.

# n = examples of a training step
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selective_backprop.ranks import Ranks

NO_IDS = torch.empty(0, dtype=torch.int64)


class StepLosses(NamedTuple):
    """What a training step says about its examples."""

    step: int
    """Number of training batches before it in the run."""
    epoch: int
    ids: Tensor
    """(n,) int64."""
    losses: Tensor
    """(n,) float32."""


def of_all_ranks(steps: list[StepLosses], ranks: Ranks) -> list[StepLosses]:
    """Gather the losses of all ranks, in the order of the steps: the newest loss of an example is written last."""
    ids = ranks.gather(torch.cat([NO_IDS, *(one.ids for one in steps)]))
    losses = ranks.gather(torch.cat([torch.empty(0), *(one.losses for one in steps)]))
    notes = [[one.step, one.epoch, len(one.ids)] for one in steps]
    kinds = ranks.gather(torch.tensor(notes, dtype=torch.int64).flatten())
    found = []
    for rank in range(ranks.size):
        numbers, epochs, sizes = kinds[rank].view(-1, 3).T.tolist()
        parts = torch.split(ids[rank], sizes), torch.split(losses[rank], sizes)
        found += [StepLosses(*one) for one in zip(numbers, epochs, *parts, strict=True)]
    return sorted(found, key=lambda one: one.step)


def joined(steps: list[StepLosses]) -> list[StepLosses]:
    """Join steps into one, faster to write; not if an id is in two of them, or they are of several epochs."""
    if len(steps) < 2 or len({one.epoch for one in steps}) > 1:
        return steps
    ids = torch.cat([one.ids for one in steps])
    in_order = ids.sort().values
    if bool((in_order[1:] == in_order[:-1]).any()):
        return steps
    return [StepLosses(steps[0].step, steps[0].epoch, ids, torch.cat([one.losses for one in steps]))]
