"""Ranks for tests: threads that stand in for processes, and real processes."""

import threading
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist

from selective_backprop.distributed.ranks import Alone, Ranks, current_ranks
from tests.distributed.launch import ENVIRONMENT
from tests.processes import begin, start_server

PATIENCE = 120  # seconds; a rank that waits longer has lost the others


class ThreadRanks(Ranks):
    """As `Ranks`, for threads of one process."""

    def __init__(self, rank, size, shared):
        self.rank, self.size = rank, size
        self.messages = 0
        """Collectives so far."""
        self.bytes_sent = 0
        self._shared = shared

    def _all(self, value):
        self.messages += 1
        self._shared["values"][self.rank] = value
        self._shared["barrier"].wait(PATIENCE)
        values = list(self._shared["values"])
        self._shared["barrier"].wait(PATIENCE)  # nobody writes the next one before all have read this one
        return values

    def gather(self, values, counts=None):
        result = [part.clone() for part in self._all(values)]
        assert counts is None or counts == [len(part) for part in result]
        assert len({part.dtype for part in result}) == 1
        return result

    def share(self, numbers):
        return [part.tolist() for part in self.gather(torch.tensor(numbers, dtype=torch.float64))]

    def exchange(self, parts):
        assert len(parts) == self.size
        result = [theirs[self.rank].clone() for theirs in self._all(parts)]
        assert len({part.dtype for part in result}) == 1
        return result


def run_threads(size, work):
    """work(ranks) on each rank, results by rank."""
    shared = {"values": [None] * size, "barrier": threading.Barrier(size)}
    results, errors = [None] * size, []

    def run(rank):
        try:
            results[rank] = work(ThreadRanks(rank, size, shared))
        except BaseException as error:
            errors.append(error)
            shared["barrier"].abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors
    return results


_thread = threading.local()


@contextmanager
def ranks_are_threads():
    """Meanwhile a SelectiveLoader made in a thread of `run_loaders` is one of its ranks."""
    path = "selective_backprop.loader.selective_loader.current_ranks"
    with mock.patch(path, lambda: getattr(_thread, "ranks", Alone())):
        yield


def run_loaders(size, work):
    """work(rank) on each of the ranks, which may be one, with loaders that know of each other."""
    if size == 1:
        return [work(0)]

    def on_thread(ranks):
        _thread.ranks = ranks
        return work(ranks.rank)

    with ranks_are_threads():
        return run_threads(size, on_thread)


def run_processes(size, work, folder, *args):
    """work(ranks, folder, *args) in `size` processes over gloo; what each returns, by rank, as torch.load reads it.

    work is a function of a module; ranks are Alone where there is only one. The folder is new to every call.
    """
    return run_phases([(size, work, args)], folder)[0]


def run_phases(phases, folder):
    """One `run_processes` of (size, work, args) after the other; the processes stay, as starting them takes long."""
    folder.mkdir(parents=True, exist_ok=True)
    largest = max(size for size, _, _ in phases)
    start_server(ENVIRONMENT)
    torch.multiprocessing.start_processes(_run, args=(phases, folder), nprocs=largest, start_method="forkserver")
    return [
        [torch.load(folder / f"result-{number}-{rank}.pt", weights_only=True) for rank in range(size)]
        for number, (size, _, _) in enumerate(phases)
    ]


def _run(rank, phases, folder):
    begin()
    torch.set_num_threads(1)
    for number, (size, work, args) in enumerate(phases):
        if rank >= size:
            continue
        if size > 1:
            where = f"file://{folder}/rendezvous-{number}"
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
        torch.save(work(current_ranks(), folder, *args), folder / f"result-{number}-{rank}.pt")
        if size > 1:
            dist.barrier()  # rank 0 holds the connections of the others
            dist.destroy_process_group()
