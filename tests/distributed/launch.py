"""Run a function on several ranks, each a real process over gloo; what it returns comes back through files."""

import importlib
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests import processes
from tests.processes import CONTEXT, begin, leave, start_server

ENVIRONMENT = processes.ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
SAFETY_NET = 300  # seconds; nothing is expected to take that long, and no test goes by it


def start(job, folder, size, *arguments, timeout=None):
    """Start `module:function` of tests.distributed on each rank.

    timeout: that of init_process_group, in seconds; torch's own if not given.
    """
    start_server(ENVIRONMENT)
    store = folder / f"store-{uuid.uuid4().hex}"
    ranks = [CONTEXT.Process(target=main, args=(job, store, rank, size, arguments, timeout)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    return store, ranks


def finish(store, ranks):
    """Exit code and output of each rank."""
    try:
        for rank in ranks:
            rank.join(SAFETY_NET)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return [(process.exitcode, Path(f"{store}-{rank}.err").read_text()) for rank, process in enumerate(ranks)]


def run(job, folder, size=2, *arguments):
    """What the job returned on each rank; raises with what the ranks printed if one failed."""
    store, processes = start(job, folder, size, *arguments)
    results = finish(store, processes)
    output = "\n".join(f"--- rank {rank}, exit code {code}\n{text}" for rank, (code, text) in enumerate(results))
    assert all(code == 0 for code, _ in results), output
    return [torch.load(f"{store}-{rank}.pt", weights_only=True) for rank in range(size)]


def main(job, store, rank, size, arguments, timeout):
    torch.set_num_threads(1)
    with open(f"{store}-{rank}.err", "w") as printed:
        begin(printed.fileno(), printed.fileno())
    where = {"init_method": f"file://{store}", "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **where, timeout=None if timeout is None else timedelta(seconds=timeout))
    module, function = job.split(":")
    result = getattr(importlib.import_module(f"tests.distributed.{module}"), function)(*arguments)
    torch.save(result, f"{store}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    leave()


@dataclass
class Ranks:
    """This process among those that train together."""

    rank: int
    size: int

    @classmethod
    def here(cls):
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls(0, 1)


def run_phases(phases, folder):
    """work(ranks, folder, *args) in `size` processes for each (size, work, args), one after the other; results by rank.

    The processes stay, as starting them takes long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    largest = max(size for size, _, _ in phases)
    start_server(ENVIRONMENT)
    torch.multiprocessing.start_processes(_go_through, (phases, folder), largest, start_method="forkserver")
    return [
        [torch.load(folder / f"result-{number}-{rank}.pt", weights_only=True) for rank in range(size)]
        for number, (size, _, _) in enumerate(phases)
    ]


def _go_through(rank, phases, folder):
    begin()
    torch.set_num_threads(1)
    for number, (size, work, args) in enumerate(phases):
        if rank >= size:
            continue
        if size > 1:
            where = f"file://{folder}/rendezvous-{number}"
            dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
        torch.save(work(Ranks.here(), folder, *args), folder / f"result-{number}-{rank}.pt")
        if size > 1:
            dist.barrier()  # rank 0 holds the connections of the others
            dist.destroy_process_group()
