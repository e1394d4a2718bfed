"""A rank that dies, or waits to be killed, at a moment that was chosen before.

    TORTURE_ENDS=... torchrun -m tests.torture.mortal MODULE ARGUMENT ...

runs the module as python -m does. Of the ends, the first is for the first start, the second for the second one.
"""

import json
import os
import runpy
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from torch.nn.modules.module import register_module_forward_pre_hook

from tests.distributed.launch import SAFETY_NET

ENDS = "TORTURE_ENDS"
_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


@dataclass(frozen=True)
class End:
    """The number-th file operation in the folder, or the number-th layer that a rank goes through."""

    rank: int
    event: str
    """ "file" or "layer"."""
    number: int
    then: str = "die"
    """ "die" by itself, "wait" to be killed, "tell" and go on: then it is killed in the middle of what follows."""


def as_variable(folder, ends):
    """For the environment of ranks that work in this folder."""
    return {ENDS: json.dumps([str(folder), *map(asdict, ends)])}


def reached(folder, start=0):
    """A file beside the folder that is there once a rank has come to its end."""
    return folder.with_name(f"{folder.name}.reached-{start}")


def prepare():
    """Called in a rank before it begins."""
    folder, *ends = json.loads(os.environ[ENDS])
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if start >= len(ends):
        return
    end, done = End(**ends[start]), 0
    if end.rank != int(os.environ["RANK"]):
        return

    def count():
        nonlocal done
        done += 1
        if done == end.number:
            reached(Path(folder), start).touch()
            if end.then == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if end.then == "wait":
                time.sleep(SAFETY_NET)
                os._exit(3)

    def audit(event, arguments):
        if event in _OPERATIONS and str(arguments[0]).startswith(folder):
            count()

    if end.event == "file":
        sys.addaudithook(audit)
    else:
        register_module_forward_pre_hook(lambda *_: count())


if __name__ == "__main__":
    prepare()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
