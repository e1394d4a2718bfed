"""Training losses on their way to the ledger.

# n = examples of a training step
"""

from __future__ import annotations

import torch
from torch import Tensor

from selective_backprop.distributed.ledger import AnyLedger

StepLosses = tuple[Tensor, Tensor, int]
"""The ids of a training step, their losses, on the CPU, and the number of the epoch."""


def write_losses(steps: list[StepLosses], ledger: AnyLedger) -> None:
    """Write the losses of training steps to the ledger."""
    for ids, losses, epoch in joined(steps):
        ledger.record_losses(ids, losses, epoch)


def joined(steps: list[StepLosses]) -> list[StepLosses]:
    """Join steps into one, faster to write; not if an id is in two of them.

    >>> steps = [(torch.tensor([i]), torch.ones(1), 0) for i in (3, 1)]
    >>> len(joined(steps)), len(joined([*steps, steps[0]]))
    (1, 3)
    """
    if len(steps) < 2 or len({epoch for *_, epoch in steps}) > 1:
        return steps
    ids = torch.cat([ids for ids, _, _ in steps])
    in_order = ids.sort().values
    if bool((in_order[1:] == in_order[:-1]).any()):
        return steps
    return [(ids, torch.cat([losses for _, losses, _ in steps]), steps[0][2])]
