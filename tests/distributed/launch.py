"""Run a function on several ranks, each a real process over gloo; what it returns comes back through files."""

import importlib
import uuid
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests import processes
from tests.processes import CONTEXT, ROOT, begin, leave, start_server

__all__ = ["ENVIRONMENT", "ROOT", "SAFETY_NET", "finish", "run", "start"]
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
