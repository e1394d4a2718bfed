"""Running cells of the leaderboard, one after the other. A run that was stopped goes on from its last epoch."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch.nn import functional as F

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.files.sealed import read_sealed, write_sealed
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store, made_with
from selective_backprop_lab.leaderboard.workloads import Workload
from selective_backprop_lab.runs.costs import forward_operations
from selective_backprop_lab.runs.experiment import Entry
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Training, load_data
from selective_backprop_lab.study.comparison import settings_for
from selective_backprop_lab.study.standing import AS, RANDOM

STATE_KIND = "leaderboard 2"
"""What a state that was saved after an epoch is called in its file."""
HELD_OUT = 0.2
"""Share of the training examples that rates are chosen on. No trial trains on them."""
Show = Callable[[Outcome, int, float], None]
"""Called after each run, with the number of runs that are left and the seconds that they will take."""


def settings_of(workload: Workload, cell: Cell, sizes: Outcome | None = None) -> Settings:
    """All settings of a run.

    Args:
        workload, cell: what is run.
        sizes: the run whose sizes random subsets have, for these.

    >>> from selective_backprop_lab.leaderboard.workloads import find_workload
    >>> settings = settings_of(find_workload("cifar10-w16"), Cell("SB", "sb@0.5:longer=1.5", 2.0, 8, 0))
    >>> settings.recipe.lr, settings.recipe.epochs, settings.selectivity
    (1.5, 12, 0.5)
    """
    spec = MethodSpec.parse(cell.setting.removeprefix(AS))
    options = dict(spec.options)
    epochs = round(cell.length * options.pop("longer", 1.0))
    recipe = workload.recipe.with_(epochs=epochs, lr=workload.recipe.lr * cell.rate)
    more = {"seed": cell.seed, "label_noise": workload.label_noise, "validation": HELD_OUT if cell.held_out else 0.0}
    settings = settings_for(dataclasses.replace(spec, options=options), recipe, **more)
    if sizes is None:
        return settings
    subsets = dataclasses.replace(settings, method=RANDOM, options={})
    return Entry(cell.arm, subsets).with_sizes(sizes.epochs).settings


def run_cell(
    workload: Workload, cell: Cell, data: ImageSet, saved: Path, *, sizes: Outcome | None = None, device: torch.device
) -> Outcome:
    """Train once and test once, at the end; on a CPU with one thread.

    The run is saved in a file after every epoch, and goes on from there after a stop. One that diverges has an error of
    1, at the cost of a whole run.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
    training = Training(settings_of(workload, cell, sizes), data, device, test_every_epoch=False)
    seconds, reference = 0.0, [reference_seconds(training)]
    if saved.exists():
        with read_sealed(saved, STATE_KIND) as state:
            training.load_state_dict(state["training"])
            seconds, reference = state["seconds"], [*state["reference"], *reference]
    while len(training.records) < training.settings.epochs:
        began = _now(device)
        try:
            training.epoch()
        except ValueError as fault:
            if not str(fault).startswith("not finite"):
                raise
            whole = {"test_error": 1.0, "compute": 1.0} | dict.fromkeys(("offered", "trained"), training.num_examples)
            training.records += [whole] * (training.settings.epochs - len(training.records))
        seconds += _now(device) - began
        state = {"training": training.state_dict(), "seconds": seconds, "reference": reference}
        write_sealed(saved, STATE_KIND, state)
    compute = sum(record["compute"] for record in training.records)
    example = training.normalise(data.train_images[:1].to(device))
    operations = 3 * forward_operations(training.model, example) * training.num_examples
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    epochs = tuple({name: record[name] for name in ("offered", "trained")} for record in training.records)
    made = made_with() | {"device": where, "threads": torch.get_num_threads(), "bf16": workload.recipe.bf16}
    reached, pflops = training.records[-1]["test_error"], compute * operations / 1e15
    return Outcome(cell, reached, compute, pflops, seconds, (*reference, reference_seconds(training)), epochs, made)


def _now(device: torch.device) -> float:
    """Seconds that can be compared: on a CPU those that this process had it for, as others may use it too."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def reference_seconds(training: Training, repeats: int = 10) -> float:
    """Seconds of a forward and a backward pass of a copy of the network on the first batch: the lowest of a few."""
    model, size, data = copy.deepcopy(training.model).train(), training.settings.recipe.batch_size, training.data
    images, labels = (part[:size].to(training.device) for part in (data.train_images, data.train_labels))
    images, found = training.normalise(images), []
    for _ in range(repeats):
        began = _now(training.device)
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        found.append(_now(training.device) - began)
    return min(found)


def run_missing(
    workload: Workload, cells: Sequence[Cell], store: Store, data_dir: Path | None, device: torch.device, show: Show
) -> None:
    """Run the cells that have no record yet, in their order. All are trials, or none is."""
    missing, began = store.missing(cells), time.monotonic()
    if not missing:
        return
    data = load_data(settings_of(workload, missing[0]), data_dir)
    folder = store.file.with_suffix(".under-way")
    folder.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(missing, 1):
        sizes = None if cell.source is None else store.outcomes[cell.source]
        saved = folder / f"{sha256(repr(cell).encode()).hexdigest()[:16]}.state"
        store.add(outcome := run_cell(workload, cell, data, saved, sizes=sizes, device=device))
        saved.unlink()
        # All arms cost about as much as plain training of the same length.
        done, left = (sum(one.length for one in part) for part in (missing[:number], missing[number:]))
        show(outcome, len(missing) - number, (time.monotonic() - began) / done * left)
