"""Processes of tests.

Most are forked from one that has imported everything, because importing torch takes longer than most tests.
"""

import atexit
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

ROOT = Path(__file__).parent.parent
# This code, installed or not.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "selective_backprop_lab.cli",
        "selective_backprop_lab.study.demo",  # which imports what most commands need
        "sklearn.datasets",
        "torch._dynamo",  # which the first optimizer imports
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.nn.parallel.distributed",
    ]
)


def start_server(environment):
    """Start the process that others are forked from, if there is none.

    Args:
        environment: variables that processes find when they begin. OpenMP looks at them once, when torch is imported.
    """
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def begin(output=1, errors=2):
    """What a forked process does first, to be like one that was started by itself; it prints to these descriptors."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    # Or the workers of a DataLoader would be forked from a process that has to import torch first.
    multiprocessing.set_start_method("fork", force=True)


def leave():
    """End this process successfully, and at once.

    Without this, a thread of DDP or gloo sometimes aborts the process while the interpreter ends, because it still has
    something to release. A rank that has done all its work would then count as failed. It happened in 10 of 360
    processes that only made a few steps of DDP, with torch 2.13.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
