"""Functions that the ranks of an experiment call together. In a process that trains alone, each is a plain call.

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
_TOLD = (ValueError, TypeError, OSError, ImportError)  # errors in the user's input, not in the program


def place() -> tuple[int, int]:
    """The rank of this process, and the number of ranks.

    >>> place()
    (0, 1)
    """
    ranks = current_ranks()
    return ranks.rank, ranks.size


def number_of_ranks() -> int:
    """Number of ranks that train together; 1 for a process that trains alone."""
    return place()[1]


def is_first() -> bool:
    """Whether this is the rank that reports and writes."""
    return place()[0] == 0


def from_first(make: Callable[[], T]) -> T:
    """Call `make` on rank 0 and return its result, plain data, on all ranks. An error is raised on all of them.

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
    """Call `make` on every rank, first on rank 0, so that the others find what it leaves on disk, such as a cache."""
    made: list[T] = []
    from_first(lambda: made.append(make()))
    return made[0] if made else make()


def total(values: Sequence[float]) -> list[float]:
    """Sum values over ranks. The result is bit-identical on all; whole numbers up to 2**53 are exact.

    >>> total([3, 0.5])
    [3.0, 0.5]
    """
    own = torch.tensor(values, dtype=torch.float64)
    ranks = current_ranks()
    parts = ranks.gather(own, [len(own)] * ranks.size)
    return torch.stack(parts).sum(0).tolist()


def own_part(length: int) -> slice:
    """This rank's part of `length` rows, as a slice.

    >>> own_part(360)
    slice(0, 360, None)
    """
    rank, size = place()
    return slice(rank * length // size, (rank + 1) * length // size)


class Share(Sampler[int]):
    """Sampler of this rank's candidates: every K-th of the order that one process would go through.

    All ranks draw the same order, so their k-th candidate batches together are the k-th batch of one process.
    If M is not a multiple of K, the last few examples of the order are left out of the epoch (others each time), and no
    example is repeated. All ranks have equally many candidates, so keeping everything is plain DDP.

    Args:
        order: sampler of all examples, the same on every rank.
    """

    def __init__(self, order: Sized) -> None:
        self.order: Any = order
        self.rank, self.size = place()

    def __len__(self) -> int:
        return len(self.order) // self.size

    def __iter__(self) -> Iterator[int]:
        # Drawn as a whole, so that the random numbers used do not depend on where this rank stops.
        return iter(list(self.order)[self.rank : len(self) * self.size : self.size])


def for_training(model: nn.Module) -> nn.Module:
    """Wrap the model in DDP if there are several ranks."""
    if number_of_ranks() == 1:
        return model
    on_gpu = next(model.parameters()).is_cuda
    return nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()] if on_gpu else None)


def arrange_gradients(model: nn.Module, inputs: Tensor) -> None:
    """Make a model in DDP sum gradients in the order of a model that has been trained. Load its state after this.

    After its first step DDP arranges gradients in the order in which they arrive. With three or more ranks, this order
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
