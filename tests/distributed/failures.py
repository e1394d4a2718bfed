"""Ranks that fail; run by every rank."""

import os
import signal
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

import selective_backprop as sb
from selective_backprop.distributed import ranks
from tests.distributed import numbers
from tests.distributed.numbers import Numbers, cut, go_through, make
from tests.distributed.runs import Run


def loader_of_both(method, count, **options):
    """Over the first half of the numbers on rank 0, over the second on rank 1."""
    half, rank = count // 2, dist.get_rank()
    return make(method, count, cut(range(rank * half, rank * half + half), 4), epochs=2, **options)


def not_finite():
    """What is said when example 21, which is rank 1's, has a loss that is not a number; all ranks stay in step."""
    model, loader = loader_of_both(sb.selective_backprop(0.5), 24)
    forward = model.forward
    model.forward = lambda values: torch.where(values == 21, float("nan"), forward(values))
    try:
        go_through(model, loader, 2)
    except ValueError as error:
        return str(error)


def wrong_states():
    """What is said of a state that another rank saved, or other ranks."""
    rank = dist.get_rank()
    run, messages = Run(sb.selective_backprop(0.5)), []
    state = run.loader.state_dict()
    for saved in ({"rank": 1 - rank, "size": 2}, {"rank": 0, "size": 1}):
        try:
            run.loader.load_state_dict(state | {"ranks": saved})
        except ValueError as error:
            messages.append(str(error))
    return messages


def other_versions():
    """What is said when ranks run different versions of the library."""
    usual, sb.__version__ = sb.__version__, f"7.{dist.get_rank()}"
    try:
        loader_of_both(sb.selective_backprop(0.5), 24)
    except ValueError as error:
        return str(error)
    finally:
        sb.__version__ = usual


class Broken(Numbers):
    """One example of rank 1 cannot be loaded."""

    def __getitem__(self, index):
        if index == 40:
            raise OSError("cannot read image 40")
        return super().__getitem__(index)


def worker():
    """A worker of rank 1 raises."""
    numbers.Numbers = Broken
    go_through(*loader_of_both(sb.selective_backprop(0.5), 48, loader_options={"num_workers": 1}), 2)


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


def ended(folder):
    """What is left of the connections when the interpreter shuts down, with a loader that is still referred to."""
    model, loader = loader_of_both(sb.methods.ledger_percentile(0.5), 48)
    go_through(model, loader, 1)
    sb.save_checkpoint(folder, loader, model=model)
    group, before = weakref.ref(loader.team.ranks.group), len(os.listdir("/proc/self/task"))
    ranks.close_groups()
    try:
        next(iter(loader))
    except RuntimeError as error:
        message = str(error)
    return {"open": group() is not None, "threads": before - len(os.listdir("/proc/self/task")), "message": message}


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


def stopped_in_delivery(file):
    """Rank 1 stands still at the end of an epoch, when the ledger's rows are on their way."""
    model, loader = loader_of_both(sb.methods.ledger_percentile(0.5), 48)
    if dist.get_rank() == 1:
        loader.ledger.deliver = lambda: _stand_still(file)
    go_through(model, loader, 2)


def saved_on_rank_0_alone(file):
    """As `if rank == 0: save_checkpoint(...)` does, with a rank 1 that goes its own way."""
    model, loader = loader_of_both(sb.selective_backprop(0.5), 48)
    if dist.get_rank() == 1:
        _stand_still(file)
    sb.save_checkpoint(Path(file).with_suffix(".run"), loader, model=model)


def _stand_still(file):
    Path(file).touch()
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":  # under torchrun
    dist.init_process_group("gloo")
    killed()
