"""Runs killed at moments drawn from a seed: at a file operation, while a file is being written, at any instant.

The first two hit the same place each time; the last depends on how fast the machine is, and what has to come out of it
does not.
"""

import functools
import os
import random
import resource
import signal
import sys
import time

from tests.lab.command_line import start
from tests.torture.runs import check_same_outcome, command, finish

_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove")


def die_at_operation(number, folder):
    """Called in the process to be killed: before its number-th file operation in the folder it kills itself."""
    done = 0

    def count(event, arguments):
        nonlocal done
        if event in _OPERATIONS and str(arguments[0]).startswith(folder):
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def kill_at_operation(method, folder, number):
    """Whether it was killed; it may have finished before that."""
    with start(*command(method, folder), prepare=functools.partial(die_at_operation, number, str(folder))) as process:
        process.communicate()
        return _was_killed(process)


def die_while_writing(name, written, folder):
    """Called in the process to be killed: the kernel ends it when some bytes of this file are on the disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; the kernel's own way is to end the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    part = str(folder / f"{name}.part")

    def watch(event, arguments):
        if event == "open" and str(arguments[0]) == part:
            resource.setrlimit(resource.RLIMIT_FSIZE, (written, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    sys.addaudithook(watch)


def kill_while_writing(method, folder, name, written):
    """Killed when as many bytes of a file are written, and more are to come."""
    prepare = functools.partial(die_while_writing, name, written, folder)
    with start(*command(method, folder), prepare=prepare) as process:
        process.communicate()
        killed = _was_killed(process)
    if killed:
        assert (folder / f"{name}.part").stat().st_size <= written
    return killed


def kill_at_instant(method, folder, epochs, seconds):
    """Some time after it has gone on for some epochs."""
    with start(*command(method, folder)) as process:
        while process.poll() is None and process.progress().count("epoch ") < epochs:
            time.sleep(0.001)
        time.sleep(seconds)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        return _was_killed(process)


def _was_killed(process):
    assert process.returncode in (0, -signal.SIGKILL, -signal.SIGXFSZ), process.communicate()
    return process.returncode != 0


def draw(chance):
    """A way to kill a run, to be called with its method and folder."""
    kind = chance.choice(["operation", "operation", "instant", "instant", "writing"])
    if kind == "operation":
        return functools.partial(kill_at_operation, number=chance.randint(1, 50))  # up to three epochs' worth
    if kind == "instant":
        return functools.partial(kill_at_instant, epochs=chance.randint(0, 2), seconds=chance.uniform(0, 0.3))
    name, most = chance.choice([("checkpoint.pt", 60_000), ("checkpoint.pt", 60_000), ("records.jsonl", 400)])
    return functools.partial(kill_while_writing, name=name, written=chance.randint(0, most))


def survive(method, scratch, ways):
    """Kill runs in these ways, one after the other, each going on where the last was killed. Returns the number."""
    left, killed, runs = list(ways), 0, 0
    while left:
        folder = scratch / f"{method.replace(', ', '-')}-{runs}"
        before = killed
        while left and left[0](method, folder):
            killed += 1
            left.pop(0)
        if killed == before:
            left.pop(0)  # a whole run ended before it: too fast a machine
        # Finished before a kill, which is then for the next run, or after all of them.
        finish(method, folder)
        check_same_outcome(method, folder)
        runs += 1
    return killed


def survive_chance(method, scratch, kills, seed):
    """As many kills at moments drawn from a seed."""
    chance = random.Random(f"{method} {seed}")
    return survive(method, scratch, [draw(chance) for _ in range(kills)])
