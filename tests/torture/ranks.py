"""SIGKILL for two ranks: for all of them and torchrun, or for one, with and without --max-restarts."""

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from selective_backprop.testing import same
from tests.distributed import launch
from tests.lab.command_line import ENVIRONMENT, workers_of
from tests.torture import kills, mortal, runs
from tests.torture.mortal import End


def torchrun(folder, *ends, restarts=0):
    """Begin a loop of two ranks or go on with it; what they print goes to a file beside the folder.

    The loop calls save_checkpoint and load_checkpoint.
    """
    folder.mkdir(exist_ok=True)
    module = ["tests.distributed.elastic_run", str(folder)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "-m", "tests.torture.mortal", *module]
    # Or ranks that start again may find addresses of those that died (pytorch issue 135712).
    environment = ENVIRONMENT | launch.ENVIRONMENT | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment |= mortal.as_variable(folder, ends)
    with printed(folder).open("w") as log:
        return subprocess.Popen(command, cwd=launch.ROOT, env=environment, stdout=log, stderr=log)


def printed(folder):
    return folder.with_name(f"{folder.name}.log")


def finish(folder, *ends, restarts=0):
    code = torchrun(folder, *ends, restarts=restarts).wait(launch.SAFETY_NET)
    assert code == 0, printed(folder).read_text()


@functools.cache
def undisturbed():
    """The folder of a loop of two ranks that nothing happened to."""
    folder = Path(runs.place().name) / "two-ranks"
    finish(folder)
    return folder


def check(folder):
    """The outcome is that of the undisturbed loop, to the bit."""
    for rank in range(2):
        expected, found = (
            torch.load(path / f"result-{rank}.pt", weights_only=True) for path in (undisturbed(), folder)
        )
        for part in ("model", "optimizer", "ledger"):
            assert same(found[part], expected[part]), f"{part} of rank {rank} is another"
        # Those of the last start.
        assert same(found["ids"], expected["ids"][len(expected["ids"]) - len(found["ids"]) :])
    assert len(list((folder / "checkpoints").glob("checkpoint-*"))) == 2, "what was half-written is gone"


# ---- all of them


def kill_all(process):
    """torchrun and its ranks. It stands still meanwhile: their ids stay theirs until all have let go of their files."""
    process.send_signal(signal.SIGSTOP)
    ranks = workers_of(process)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        while not _is_dead(pid):
            time.sleep(0.01)
    process.kill()


def _is_dead(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state or state.startswith("Z")


def kill_job(folder, end, seconds):
    """Whether it was killed when a rank had come to its end, some time after; it may have finished before that."""
    mortal.reached(folder).unlink(missing_ok=True)
    process = torchrun(folder, end)
    while process.poll() is None and not mortal.reached(folder).exists():
        time.sleep(0.005)
    time.sleep(seconds)
    if process.poll() is None:
        kill_all(process)
    assert process.wait() in (0, -signal.SIGKILL), printed(folder).read_text()
    return process.returncode != 0


def draw(chance):
    """A way to kill all ranks, to be called with the folder."""
    if chance.random() < 0.5:  # while a checkpoint is being written
        rank = chance.randrange(2)
        end = End(rank, "file", chance.randint(1, 40 if rank == 0 else 15), "wait")
        return functools.partial(kill_job, end=end, seconds=0)
    end = End(chance.randrange(2), "layer", chance.randint(1, 60), "tell")
    return functools.partial(kill_job, end=end, seconds=chance.choice([0, chance.uniform(0, 0.3)]))


def all_killed(times, seed, scratch):
    chance = random.Random(f"two ranks {seed}")
    # What `survive` calls gets the name of the run first.
    ways = [functools.partial(lambda way, _, folder: way(folder), draw(chance)) for _ in range(times)]
    return kills.survive("loop", scratch, ways, lambda _, folder: finish(folder), lambda _, folder: check(folder))


# ---- one of them


def one_killed(seed, scratch):
    """torchrun fails; with --max-restarts it starts all ranks again, also in a folder that was not there before."""
    chance = random.Random(f"one of two {seed}")
    # A rank that dies in its training, then rank 0 while it writes.
    first = End(chance.randrange(2), "layer", chance.randint(1, 40))
    second = End(0, "file", chance.randint(1, 15))
    folder = scratch / "stays dead"
    process = torchrun(folder, first)
    assert process.wait(launch.SAFETY_NET) == 1, printed(folder).read_text()
    assert "Signal 9 (SIGKILL)" in printed(folder).read_text()
    finish(folder)
    check(folder)
    folder = scratch / "starts again"
    finish(folder, first, second, restarts=2)
    check(folder)
    assert mortal.reached(folder, 0).exists() and mortal.reached(folder, 1).exists()
    return 3
