"""Runs of the command line that are short and have much to lose, and when two of them had the same outcome."""

import copy
import functools
import tempfile
from pathlib import Path

import numpy as np

from selective_backprop.testing import same
from selective_backprop_lab.runs.ledger_log import read_ledger_log
from tests.lab.command_line import run, text_of, without_seconds
from tests.lab.states import unseal

METHODS = {
    "sb": ("--method", "sb"),
    "stale": ("--method", "stale:every=2"),
    "ledger": ("--method", "ledger"),
    "kath18": ("--method", "kath18"),
    "sb, pipelined": ("--method", "sb:scoring=pipelined"),
    "traditional": ("--method", "traditional"),
}
EPOCHS = 6


def command(method, folder):
    """To begin a run in this folder or to go on with it, whatever is there."""
    model = ("--model", "tests.torture.network:small", "--label-noise", 0.1)
    return ("train", "--epochs", EPOCHS, *METHODS[method], *model, "--out", folder, "--resume")


def finish(method, folder, **options):
    """Run it to its end."""
    result = run(*command(method, folder), **options)
    assert result.returncode == 0, text_of(result)
    return text_of(result)


@functools.cache
def place():
    """Made when it is needed: processes that are killed import this module too, and would leave it behind."""
    return tempfile.TemporaryDirectory(prefix="undisturbed-")


@functools.cache
def undisturbed(method):
    """The folder of a run that nothing happened to; for all faults the same."""
    folder = Path(place().name) / method.replace(", ", "-")
    finish(method, folder)
    return folder


def check_same_outcome(method, folder):
    """The final state to the bit, the ids selected in every epoch and all records are those of the undisturbed run."""
    other = undisturbed(method)
    folders = other, folder
    expected, found = (_without_seconds(unseal((path / "checkpoint.pt").read_bytes())) for path in folders)
    assert found.keys() == expected.keys()
    for name in expected:
        assert same(found[name], expected[name]), f"{name} is another"
    assert without_seconds(folder) == without_seconds(other)
    assert len(found["records"]) == EPOCHS
    ledgers = [read_ledger_log(path) for path in folders]
    for column in ("selected", "loss", "probability"):
        first, second = (getattr(ledger, column) for ledger in ledgers)
        assert first.shape == second.shape and np.array_equal(first, second, equal_nan=first.dtype.kind == "f"), column
    assert not list(folder.rglob("*.part")), "what was half-written is gone"


def _without_seconds(state):
    """Of a checkpoint, all that does not depend on how fast the machine was."""
    state = copy.deepcopy(state)
    del state["loader"]["run"]["stats"]["seconds"], state["loader"]["reported"]["seconds"]
    for record in state["records"]:
        del record["seconds"]
    return state


def contents(folder):
    """Every file but the lock, by name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
