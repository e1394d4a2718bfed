"""SIGKILL at moments drawn from a seed: at a file operation, while a file is being written, at any instant.

The first two hit the same place each time; the last depends on how fast the machine is, and what has to come out of it
does not.
"""

import functools
import os
import random
import select
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


def kill_while_writing(method, folder, name, written):
    """Killed when some bytes of a file have arrived, and no more can: for as long, the file is a pipe."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.unlink(missing_ok=True)
    os.mkfifo(part)
    reader = os.open(part, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with start(*command(method, folder)) as process:
            while process.poll() is None and not select.select([reader], [], [], 0.1)[0]:
                pass
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()
            content = os.read(reader, written) if _was_killed(process) else b""
    finally:
        os.close(reader)
        part.unlink(missing_ok=True)
    if _was_killed(process):
        part.write_bytes(content)  # what a disk would have of it
    return _was_killed(process)


def kill_at_instant(method, folder, epochs, seconds):
    """Some time after it has gone on for some epochs."""
    with start(*command(method, folder)) as process:
        while process.poll() is None and process.output().count("epoch ") < epochs:
            time.sleep(0.001)
        time.sleep(seconds)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        return _was_killed(process)


def _was_killed(process):
    assert process.returncode in (0, -signal.SIGKILL), process.communicate()
    return process.returncode == -signal.SIGKILL


def draw(chance):
    """A way to kill a run, to be called with its method and folder."""
    kind = chance.choice(["operation", "operation", "instant", "instant", "writing"])
    if kind == "operation":
        return functools.partial(kill_at_operation, number=chance.randint(1, 50))  # up to three epochs' worth
    if kind == "instant":
        return functools.partial(kill_at_instant, epochs=chance.randint(0, 2), seconds=chance.uniform(0, 0.3))
    name = chance.choice(["checkpoint.pt", "checkpoint.pt", "records.jsonl"])
    return functools.partial(kill_while_writing, name=name, written=chance.randint(0, 60_000))


def survive(method, scratch, ways, finish=finish, check=check_same_outcome):
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
        check(method, folder)
        runs += 1
    return killed


def survive_chance(method, scratch, kills, seed):
    """As many kills at moments drawn from a seed."""
    chance = random.Random(f"{method} {seed}")
    return survive(method, scratch, [draw(chance) for _ in range(kills)])
