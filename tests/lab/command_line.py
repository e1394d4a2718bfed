"""The command line as a user runs it: in a process of its own."""

import json
import os
import subprocess
import sys

# One thread: with more, sums may be in another order.
ENVIRONMENT = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}


def start(*arguments):
    command = [sys.executable, "-m", "selective_backprop.lab", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


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
