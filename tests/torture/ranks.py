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
import torch.distributed as dist

from selective_backprop.testing import same
from tests.distributed import launch
from tests.lab.command_line import ENVIRONMENT, start, text_of, workers_of
from tests.torture import kills, mortal, runs
from tests.torture.mortal import End

LOOP = "loop"
"""A loop with save_checkpoint and load_checkpoint; the other runs are those of the command line, by method."""


def torchrun(method, folder, *ends, restarts=0):
    """Begin a run of two ranks or go on with it; what they print goes to a file beside the folder."""
    if method == LOOP:
        folder.mkdir(exist_ok=True)
        module = ["tests.distributed.elastic_run", str(folder)]
    else:
        module = ["selective_backprop.lab", *map(str, runs.command(method, folder))]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "-m", "tests.torture.mortal", *module]
    # Or ranks that start again may find addresses of those that died (pytorch issue 135712).
    environment = ENVIRONMENT | launch.ENVIRONMENT | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment |= mortal.as_variable(folder, ends)
    with printed(folder).open("w") as log:
        return subprocess.Popen(command, cwd=launch.ROOT, env=environment, stdout=log, stderr=log)


def printed(folder):
    return folder.with_name(f"{folder.name}.log")


def finish(method, folder, *ends, restarts=0):
    code = torchrun(method, folder, *ends, restarts=restarts).wait(launch.SAFETY_NET)
    assert code == 0, printed(folder).read_text()


@functools.cache
def undisturbed(method):
    """The folder of a run of two ranks that nothing happened to."""
    folder = Path(runs.place().name) / f"two-ranks-{method}"
    finish(method, folder)
    return folder


def check(method, folder):
    """The outcome is that of the undisturbed run, to the bit."""
    if method != LOOP:
        runs.check_same_outcome(method, folder, undisturbed(method))
        return
    for rank in range(2):
        expected, found = (
            torch.load(path / f"result-{rank}.pt", weights_only=True) for path in (undisturbed(method), folder)
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


def kill_job(method, folder, end, seconds):
    """Whether it was killed when a rank had come to its end, some time after; it may have finished before that."""
    mortal.reached(folder).unlink(missing_ok=True)
    process = torchrun(method, folder, end)
    while process.poll() is None and not mortal.reached(folder).exists():
        time.sleep(0.005)
    time.sleep(seconds)
    if process.poll() is None:
        kill_all(process)
    assert process.wait() in (0, -signal.SIGKILL), printed(folder).read_text()
    return process.returncode != 0


def draw(chance, method):
    """A way to kill all ranks, to be called with the method and the folder."""
    files, layers = (40, 60) if method == LOOP else (50, 1000)  # about three epochs' worth; a loop has only two
    if chance.random() < 0.5:  # while a checkpoint is being written; only rank 0 does it on the command line
        rank = chance.randrange(2) if method == LOOP else 0
        end = End(rank, "file", chance.randint(1, files if rank == 0 else 15), "wait")
        return functools.partial(kill_job, end=end, seconds=0)
    end = End(chance.randrange(2), "layer", chance.randint(1, layers), "tell")
    return functools.partial(kill_job, end=end, seconds=chance.choice([0, chance.uniform(0, 0.3)]))


def all_killed(method, times, seed, scratch):
    chance = random.Random(f"two ranks {method} {seed}")
    ways = [draw(chance, method) for _ in range(times)]
    return kills.survive(method, scratch, ways, finish, check)


# ---- one of them


def one_killed_under_torchrun(method, seed, scratch):
    """torchrun fails; with --max-restarts it starts all ranks again, also in a folder that was not there before."""
    chance = random.Random(f"one of two {method} {seed}")
    files, layers = (15, 40) if method == LOOP else (40, 1000)
    # A rank that dies in its training, then rank 0 while it writes.
    first, second = (
        End(chance.randrange(2), "layer", chance.randint(1, layers)),
        End(0, "file", chance.randint(1, files)),
    )
    folder = scratch / "stays dead"
    process = torchrun(method, folder, first)
    assert process.wait(launch.SAFETY_NET) == 1, printed(folder).read_text()
    assert "Signal 9 (SIGKILL)" in printed(folder).read_text()
    finish(method, folder)
    check(method, folder)
    folder = scratch / "starts again"
    finish(method, folder, first, second, restarts=2)
    check(method, folder)
    assert mortal.reached(folder, 0).exists() and mortal.reached(folder, 1).exists()
    return 3


def one_killed_of_two(seed, scratch):
    chance = random.Random(f"the other one {seed}")
    for killed in range(2):
        for event in ("layer", "trained layer"):  # the second waits for gradients, and loses the other one there
            the_other_ends(End(killed, event, chance.randint(1, 400)), scratch / f"{killed} {event}")
    return 4


def the_other_ends(end, folder):
    """Without torchrun, which would end the other one at once: it ends by itself, and says why."""
    # As torchrun, which has the store that ranks find each other by.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"} | mortal.as_variable(folder, [end])
    ranks = [
        start(*runs.command("sb", folder), env=ENVIRONMENT | shared | {"RANK": str(rank)}, prepare=mortal.prepare)
        for rank in range(2)
    ]
    told, other = [rank.communicate() for rank in ranks], 1 - end.rank
    said = text_of(subprocess.CompletedProcess([], 0, *told[other]))
    assert (ranks[end.rank].returncode, ranks[other].returncode) == (-signal.SIGKILL, 1), said
    assert f"rank {other} of 2 lost another rank" in said and "--max-restarts" in said, said
