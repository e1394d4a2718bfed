"""A command that torchrun started several times over: its processes join each other, and one of them speaks."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from selective_backprop.distributed.ranks import current_ranks, lost_another

_PATIENCE = timedelta(seconds=5)  # for rank 0 to come to the same error


def alone() -> bool:
    """Whether torchrun started this process alone, or did not start it."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ


def leave() -> NoReturn:
    """End this process well, and at once.

    Now and then a thread of DDP or gloo still has something to let go of, and aborts the process when it finds that
    the interpreter is ending (10 of 360 processes that did nothing but a few steps of DDP, torch 2.13): a rank that
    has done all its work would count as failed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def joined() -> Iterator[None]:
    """The processes that torchrun started work together meanwhile, and leave each other at the end, however it comes.

    Only rank 0 prints. What goes wrong on all ranks is told by rank 0, and what goes wrong on another one by that one;
    the exit code says so on all of them. Without torchrun this does nothing.
    """
    if alone():
        yield
        return
    store, rank, size = next(rendezvous("env://"))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _take_gpu()
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    current_ranks()  # connects all of them for what follows
    said = io.StringIO()
    usual = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        with _only_first_prints(rank, said):
            yield
    except BaseException as error:
        _fail(_in_plain_words(error, rank, size), rank, size, store, said.getvalue())
    finally:
        dist.destroy_process_group()
        signal.signal(signal.SIGINT, usual)


def _take_gpu() -> None:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= (count := torch.cuda.device_count()):
        sys.exit(f"there are {count} GPUs, and none for local rank {local}: --nproc-per-node {count} at most")
    torch.cuda.set_device(local)


def _interrupt_once(*_: object) -> NoReturn:
    """Ctrl-C comes from the terminal and from torchrun; the second must not disturb what the first one started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _only_first_prints(rank: int, said: io.StringIO) -> Iterator[None]:
    """What the others say about errors is kept in `said`."""
    if rank == 0:
        yield
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        yield


def _in_plain_words(error: BaseException, rank: int, size: int) -> BaseException:
    """What a rank that sums gradients says when another one is gone is about sockets."""
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error)):
        plain = lost_another(rank, size, "trained")
        plain.__cause__ = error
        return plain
    return error


def _fail(error: BaseException, rank: int, size: int, store: Any, said: str) -> NoReturn:
    """End this rank; it tells the reason unless another rank does."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not code:
        raise error
    reason = _reason(error)
    if isinstance(error, RuntimeError) and _has_failed(store, [other for other in range(size) if other != rank]):
        sys.exit(1)  # what a rank sees when another one leaves
    if rank == 0:
        if not isinstance(error, SystemExit):  # or it is on the screen already
            sys.excepthook(type(error), error, error.__traceback__)
        _post(store, rank, reason)  # only now: torchrun ends this rank as soon as another one has left
    else:
        _post(store, rank, reason)
        if _reason_of_first(store) != reason:
            text = said or "".join(traceback.format_exception(error))
            print(f"rank {rank} of {size}:\n{text}", file=sys.stderr, flush=True)
    sys.exit(code)


def _post(store: Any, rank: int, reason: str) -> None:
    with suppress(RuntimeError):  # the store may be gone, too
        store.set(f"failed/{rank}", reason)


def _reason(error: BaseException) -> str:
    """The same text for the same error."""
    if isinstance(error, SystemExit):  # of an error that the command line has shown already
        return str(error.__context__ or error.code)
    return f"{type(error).__name__}: {error}"


def _has_failed(store: Any, ranks: list[int]) -> bool:
    with suppress(RuntimeError):
        return any(store.check([f"failed/{rank}"]) for rank in ranks)
    return False


def _reason_of_first(store: Any) -> str | None:
    with suppress(RuntimeError):
        store.wait(["failed/0"], _PATIENCE)
        return str(store.get("failed/0").decode())
    return None
