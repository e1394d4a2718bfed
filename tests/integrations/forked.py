"""Processes forked from the one of the tests, which has imported the framework: that takes longer than most tests."""

import functools
import multiprocessing
import os
import runpy
import socket
import sys
import warnings

import torch

from tests.processes import leave


def fork(target, folder, ranks=1):
    """Run target(folder) on gloo ranks, or without ranks in one process. Returns the exit codes."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_main, args=(target, folder, rank, ranks, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _main(target, folder, rank, ranks, port):
    with open(folder / f"rank{rank}.txt", "w") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        # The parent may have made some, for itself alone.
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if ranks > 1:
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        # torchrun sets the threads, too, and Accelerate warns where nobody did.
        where |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        os.environ.update({name: str(value) for name, value in where.items()})
    torch.save(target(folder), folder / f"rank{rank}.pt")
    if ranks > 1:
        torch.distributed.destroy_process_group()
    leave()


def ranks(target, folder, size=2):
    """Return what each rank found. Fails with what they printed if one of them failed."""
    codes = fork(target, folder, size)
    printed = "\n".join((folder / f"rank{rank}.txt").read_text() for rank in range(size))
    assert codes == [0] * size, printed
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(size)]


def run_script(path, folder, *words):
    """What a script prints, with these words on its command line. Fails if the script does."""
    codes = fork(functools.partial(_script, path, words), folder)
    printed = (folder / "rank0.txt").read_text()
    assert codes == [0], printed[-3000:]
    return printed


def _script(path, words, folder):
    sys.argv = [str(path), *map(str, words)]
    sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)  # pytest has put others in their places
    warnings.resetwarnings()  # for pytest they are errors
    runpy.run_path(str(path), run_name="__main__")
