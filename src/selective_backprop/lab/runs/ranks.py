"""What the ranks of an experiment do together. In a process that trains alone each of these is a plain call.

# K = ranks, M = training examples
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Sampler

from selective_backprop.distributed.messages import gather
from selective_backprop.distributed.ranks import current_ranks

T = TypeVar("T")
_TOLD = (ValueError, TypeError, OSError, ImportError)  # what is wrong with the input, not with the program


def place() -> tuple[int, int]:
    """This process's rank, and how many there are.

    >>> place()
    (0, 1)
    """
    ranks = current_ranks()
    return ranks.rank, ranks.size


def number_of_ranks() -> int:
    """That train together; 1 for a process that trains alone."""
    return place()[1]


def is_first() -> bool:
    """Whether this is the rank that reports and writes."""
    return place()[0] == 0


def from_first(make: Callable[[], T]) -> T:
    """What rank 0 makes, which is plain data, on all ranks. What goes wrong with it is raised on all of them.

    >>> from_first(lambda: {"epochs": 3})
    {'epochs': 3}
    """
    answer, wrong = None, None
    if is_first():
        try:
            answer = make()
        except _TOLD as error:
            wrong = error
    result, complaint = gather(current_ranks(), [answer, None if wrong is None else str(wrong)])[0]
    if wrong is not None:
        raise wrong
    if complaint is not None:
        raise ValueError(complaint)
    return result  # type: ignore[no-any-return]  # on rank 0 too: JSON makes lists of tuples


def in_turn(make: Callable[[], T]) -> T:
    """Made by every rank, by rank 0 first: what it leaves on the disk, such as a cache, is there for the others."""
    made: list[T] = []
    from_first(lambda: made.append(make()))
    return made[0] if made else make()


def total(values: Sequence[float]) -> list[float]:
    """Sums over ranks, the same to the bit on each; whole numbers up to 2**53 are exact.

    >>> total([3, 0.5])
    [3.0, 0.5]
    """
    own = torch.tensor(values, dtype=torch.float64)
    ranks = current_ranks()
    parts = ranks.gather(own, [len(own)] * ranks.size)
    return torch.stack(parts).sum(0).tolist()


def own_part(length: int) -> slice:
    """This rank's part of so many rows, one after the other.

    >>> own_part(360)
    slice(0, 360, None)
    """
    rank, size = place()
    return slice(rank * length // size, (rank + 1) * length // size)


class Share(Sampler[int]):
    """The candidates of this rank: each K-th of the order that one process would go through.

    All ranks draw the same order, so that the k-th candidate batches of all of them are together the k-th of one
    process. No example is repeated where M is no multiple of K; rather are the last few of the order, other ones in
    each epoch, left out of it. With as many candidates on each rank, keeping everything is plain DDP.

    Args:
        order: of all examples, the same on every rank.
    """

    def __init__(self, order: Sized) -> None:
        self.order: Any = order
        self.rank, self.size = place()

    def __len__(self) -> int:
        return len(self.order) // self.size

    def __iter__(self) -> Iterator[int]:
        # All of it at once: what is drawn for it must not depend on where this rank stops.
        return iter(list(self.order)[self.rank : len(self) * self.size : self.size])


def for_training(model: nn.Module) -> nn.Module:
    """The model in DDP, which has the ranks train it together."""
    if number_of_ranks() == 1:
        return model
    on_gpu = next(model.parameters()).is_cuda
    return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()] if on_gpu else None)


def arrange_gradients(model: nn.Module, inputs: Tensor) -> None:
    """Make a model in DDP sum gradients as one that has been trained; a state is to be loaded into it after this.

    After its first step DDP arranges gradients in the order in which they arrive, and of three ranks or more the order
    decides how sums are rounded.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model(inputs).sum().backward()
        model.zero_grad(set_to_none=True)


def share_buffers(model: nn.Module) -> None:
    """Give all ranks the BatchNorm statistics of rank 0, as DDP does before each training step."""
    if number_of_ranks() > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
