"""Run a function on several ranks, each a real process over gloo; what it returns comes back through files."""

import importlib
import os
import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from selective_backprop.lab.runs.launch import leave

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}
SAFETY_NET = 300  # seconds; nothing is expected to take that long, and no test goes by it


def start(job, folder, size, *arguments, timeout=None):
    """Start `module:function` of tests.distributed on each rank.

    timeout: that of init_process_group, in seconds; torch's own if not given.
    """
    environment = ENVIRONMENT if timeout is None else ENVIRONMENT | {"RANKS_TIMEOUT": str(timeout)}
    store = folder / f"store-{uuid.uuid4().hex}"
    processes = []
    for rank in range(size):
        command = [sys.executable, "-m", "tests.distributed.launch", job, str(store), str(rank), str(size), *arguments]
        with open(f"{store}-{rank}.err", "w") as errors:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=errors, stderr=errors))
    return store, processes


def finish(store, processes):
    """Exit code and output of each rank."""
    try:
        codes = [process.wait(SAFETY_NET) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(code, Path(f"{store}-{rank}.err").read_text()) for rank, code in enumerate(codes)]


def run(job, folder, size=2, *arguments):
    """What the job returned on each rank; raises with what the ranks printed if one failed."""
    store, processes = start(job, folder, size, *arguments)
    results = finish(store, processes)
    output = "\n".join(f"--- rank {rank}, exit code {code}\n{text}" for rank, (code, text) in enumerate(results))
    assert all(code == 0 for code, _ in results), output
    return [torch.load(f"{store}-{rank}.pt", weights_only=True) for rank in range(size)]


def main(job, store, rank, size, *arguments):
    torch.set_num_threads(1)
    timeout = timedelta(seconds=float(given)) if (given := os.environ.get("RANKS_TIMEOUT")) else None
    where = {"init_method": f"file://{store}", "rank": int(rank), "world_size": int(size)}
    dist.init_process_group("gloo", **where, timeout=timeout)
    module, function = job.split(":")
    result = getattr(importlib.import_module(f"tests.distributed.{module}"), function)(*arguments)
    torch.save(result, f"{store}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
