"""Ranks that fail; run by every rank."""

import os
import signal
from pathlib import Path

import torch.distributed as dist

import selective_backprop as sb
from tests.distributed.numbers import Numbers, cut, go_through, make


def loader_of_both(method, count, **options):
    """Over the first half of the numbers on rank 0, over the second on rank 1."""
    half, rank = count // 2, dist.get_rank()
    return make(method, count, cut(range(rank * half, rank * half + half), 4), epochs=2, **options)


class Broken(Numbers):
    """One example of rank 1 cannot be loaded."""

    def __getitem__(self, index):
        if index == 40:
            raise OSError("cannot read image 40")
        return super().__getitem__(index)


def worker():
    """A worker of rank 1 raises."""
    go_through(*loader_of_both(sb.selective_backprop(0.5), 48, data=Broken(48), loader_options={"num_workers": 1}), 2)


def killed():
    """Rank 1 is killed in its third step."""

    def die(step):
        if step == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    go_through(*loader_of_both(sb.selective_backprop(0.5), 48), 2, die)


def empty():
    """Rank 1's loader has no batch."""
    ids = range(24) if dist.get_rank() == 0 else ()
    make(sb.selective_backprop(0.5), 48, cut(ids, 4), epochs=2)


def stopped_before(file):
    """Rank 1 stands still before it makes its loader."""
    if dist.get_rank() == 1:
        _stand_still(file)
    loader_of_both(sb.selective_backprop(0.5), 48)


def stopped_in_training(file):
    """Rank 1 stands still in its third step, where no gradients are summed."""

    def stop(step):
        if step == 3 and dist.get_rank() == 1:
            _stand_still(file)

    go_through(*loader_of_both(sb.selective_backprop(0.5), 48), 2, stop)


def saved_on_rank_0_alone(file):
    """As `if rank == 0: save_checkpoint(...)` does, with a rank 1 that goes its own way."""
    model, loader = loader_of_both(sb.selective_backprop(0.5), 48)
    if dist.get_rank() == 1:
        _stand_still(file)
    sb.save_checkpoint(Path(file).with_suffix(".run"), loader, model=model)


def _stand_still(file):
    Path(file).touch()
    os.kill(os.getpid(), signal.SIGSTOP)
