"""A save of two ranks, in the middle of which one of them is killed; run by every rank."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import selective_backprop as sb
from tests.checkpoint.test_ranks import Bare

_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def job(folder, rank, number):
    """Save once; then rank dies before its number-th file operation of the next save. Returns what was loaded first."""
    loader, model, done = Bare(), nn.Linear(3, 3), 0
    sb.load_checkpoint(folder, loader, model=model)
    loaded = loader.number
    loader.number += 1
    if rank == dist.get_rank():

        def count(event, arguments):
            nonlocal done
            if event in _OPERATIONS and str(arguments[0]).startswith(str(Path(folder))):
                done += 1
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
    sb.save_checkpoint(folder, loader, model=model)
    return torch.tensor(loaded)
