"""Two processes that save to one folder, one of them killed at any moment: what is loaded is one process's, whole."""

import random
import signal
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.lab.command_line import ENVIRONMENT, Running

_PARTS = 12  # tensors of the model, all of which have the same value in one save
_WIDTH = 60


class Value:
    """A part whose state is one number: it is saved to another file than tensors are."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def make_parts():
    model = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_PARTS))
    data = TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64))
    loader = sb.SelectiveLoader(DataLoader(data, 4), model, nn.CrossEntropyLoss(), sb.selective_backprop(0.5))
    return loader, {"model": model, "value": Value()}


def set_all(parts, value):
    parts["value"].value = value
    with torch.no_grad():
        for parameter in parts["model"].parameters():
            parameter.fill_(value)


def save_again_and_again(folder, first):
    """In a process of its own: every save has a number of its own in every file. A refusal is told, and ends it."""
    torch.set_num_threads(1)
    loader, parts = make_parts()
    print("ready", flush=True)
    value = first
    while not (folder.parent / "go").exists():
        time.sleep(0.001)
    while True:
        value += 1
        set_all(parts, value)
        try:
            sb.save_checkpoint(folder, loader, **parts)
        except RuntimeError as error:
            print(f"refused: {error}", flush=True)
            return
        print(f"saved {value}", flush=True)


def load(folder):
    """What the folder holds: "good", "mixed", "none", or the error."""
    loader, parts = make_parts()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not sb.load_checkpoint(folder, loader, **parts):
                return "none", 0
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:150], 0
    values = {float(number) for parameter in parts["model"].parameters() for number in parameter.detach().unique()}
    return ("good" if values == {float(parts["value"].value)} else "mixed"), parts["value"].value


def collide(folder, chance):
    """Two processes at once, of which one or both are killed; what was loaded meanwhile and after, and what they said.

    Returns what was loaded, by kind, and the number of processes that were refused.
    """
    folder.parent.mkdir(parents=True)
    processes = [Running(save_again_and_again, (folder, first), ENVIRONMENT, None) for first in (0, 1_000_000)]
    while not all("ready" in process.output() for process in processes):
        assert all(process.poll() is None for process in processes), [process.communicate() for process in processes]
        time.sleep(0.002)
    (folder.parent / "go").touch()
    found = Counter()
    while not any("saved" in process.output() for process in processes):
        assert any(process.poll() is None for process in processes), [process.communicate() for process in processes]
        time.sleep(0.002)
    for _ in range(chance.randint(0, 2)):
        time.sleep(chance.uniform(0, 0.05))
        found[load(folder)[0]] += 1
    time.sleep(chance.uniform(0, 0.1))
    order = [0, 1] if chance.random() < 0.5 else [1, 0]
    for number in order:
        if processes[number].poll() is None:
            processes[number].send_signal(signal.SIGKILL)
        processes[number].communicate()
        if number == order[0]:
            time.sleep(chance.uniform(0, 0.2))  # the other goes on, if it is not refused
    kind, _ = load(folder)
    found[kind] += 1
    refused = sum("refused" in process.output() for process in processes)
    for process in processes:
        told = process.communicate()[1]
        assert "Traceback" not in told, told
    return found, refused


def try_collisions(scratch, times, seed=0):
    """What was loaded in as many collisions, by kind, and how often a process was refused."""
    chance, found, refused = random.Random(f"collisions {seed}"), Counter(), 0
    for number in range(times):
        loaded, told = collide(Path(scratch) / f"{number}" / "checkpoints", chance)
        found += loaded
        refused += told
    return found, refused


def survive(times, seed, scratch):
    found, _ = try_collisions(scratch, times, seed)
    assert set(found) == {"good"}, found
    return times
