"""The command line as a user runs it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys

# One thread: with more, sums may be in another order.
ENVIRONMENT = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


def start(*arguments):
    command = [sys.executable, "-m", "selective_backprop.lab", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env=ENVIRONMENT, preexec_fn=_heed_ctrl_c)


def _heed_ctrl_c():
    """A shell that runs the tests in the background has them, and so their processes, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments):
    with start(*arguments) as process:
        output, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def text_of(result):
    """What was printed, without the frame and line breaks of error boxes."""
    return " ".join((result.stdout + result.stderr).replace("│", " ").split())


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def without_seconds(folder):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records(folder)]


def start_on_ranks(*arguments, ranks=2):
    """By torchrun, which finds a free port itself. Arguments as of python: a script, or -m and a module."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *map(str, arguments)], **pipes, env=ENVIRONMENT, preexec_fn=_heed_ctrl_c)


def run_on_ranks(*arguments, ranks=2):
    with start_on_ranks("-m", "selective_backprop.lab", *arguments, ranks=ranks) as process:
        output, errors = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def workers_of(process):
    """Ids of the processes that torchrun started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]
