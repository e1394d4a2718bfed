"""Commands on several ranks: the processes that torchrun started join each other, and only rank 0 prints."""

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
from selective_backprop.lab.runs.torchrun import INTERRUPTED, number_of_processes

_PATIENCE = timedelta(seconds=5)  # how long to wait for rank 0 to meet the same error


def leave() -> NoReturn:
    """End this process successfully, and at once.

    Without this, a thread of DDP or gloo sometimes aborts the process while the interpreter ends, because it still has
    something to release. A rank that has done all its work would then count as failed. It happened in 10 of 360
    processes that only made a few steps of DDP, with torch 2.13.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def joined() -> Iterator[None]:
    """Join the processes that torchrun started, and part at the end, also after an error. Without torchrun, do nothing.

    Only rank 0 prints. An error that all ranks have is shown by rank 0, an error that only another rank has is shown by
    that rank. All ranks end with an exit code that says so.
    """
    if number_of_processes() == 1:
        yield
        return
    store, rank, size = next(rendezvous("env://"))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _take_gpu()
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    current_ranks()  # connects all ranks
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
        sys.exit(f"there are {count} GPUs, so none for local rank {local}: start at most --nproc-per-node {count}")
    torch.cuda.set_device(local)


def _interrupt_once(*_: object) -> NoReturn:
    """Handle only the first Ctrl-C. It comes twice, from the terminal and from torchrun."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _only_first_prints(rank: int, said: io.StringIO) -> Iterator[None]:
    """Keep what the other ranks write to stderr in `said`, and drop what they print."""
    if rank == 0:
        yield
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        yield


def _in_plain_words(error: BaseException, rank: int, size: int) -> BaseException:
    """Replace an error about sockets, which means that another rank is gone, by one that says so."""
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport" in str(error)):
        plain = lost_another(rank, size, "trained")
        plain.__cause__ = error
        return plain
    return error


def _fail(error: BaseException, rank: int, size: int, store: Any, said: str) -> NoReturn:
    """End this rank. It shows the reason, unless another rank does."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not code:
        raise error
    reason = _reason(error)
    if isinstance(error, RuntimeError) and _has_failed(store, [other for other in range(size) if other != rank]):
        sys.exit(1)  # this error only follows from the other rank's
    if rank == 0:
        if not isinstance(error, SystemExit):  # those are on the screen already
            sys.excepthook(type(error), error, error.__traceback__)
        _post(store, rank, reason)  # only now, because torchrun ends this rank as soon as another one has left
    else:
        _post(store, rank, reason)
        # Ctrl-C reaches all ranks, and the first one says so, however long it takes to get there.
        if code != INTERRUPTED and _reason_of_first(store) != reason:
            text = said or "".join(traceback.format_exception(error))
            print(f"rank {rank} of {size}:\n{text}", file=sys.stderr, flush=True)
    sys.exit(code)


def _post(store: Any, rank: int, reason: str) -> None:
    with suppress(RuntimeError):  # the store may be gone, too
        store.set(f"failed/{rank}", reason)


def _reason(error: BaseException) -> str:
    """A text that is the same for the same error on every rank."""
    if isinstance(error, SystemExit):  # the command line has shown its error already
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
