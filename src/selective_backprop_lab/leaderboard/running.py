"""Running cells of the leaderboard, one after the other, in an order drawn beforehand."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import torch

from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.files.sealed import read_sealed, write_sealed
from selective_backprop_lab.files.writing import make_subfolder
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.workloads import Workload
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Training
from selective_backprop_lab.study.comparison import settings_for

RATE = "rate"
"""Option of every arm: a factor on the recipe's learning rate."""
STATE_KIND = "cell 1"
"""What a state that was saved after an epoch is called in its file."""
Show = Callable[[Outcome, int], None]
"""Called after each run, with the number of runs that are left."""


def settings_of(workload: Workload, cell: Cell) -> Settings:
    """All settings of a run.

    >>> from selective_backprop_lab.leaderboard.workloads import find_workload
    >>> settings = settings_of(find_workload("mnist"), Cell("SB", "sb@0.5:rate=2", 3, 0, held_out=False))
    >>> settings.recipe.lr, settings.recipe.epochs, settings.selectivity
    (0.6, 3, 0.5)
    """
    choice = MethodSpec.parse(cell.setting.replace("{proxy}", workload.proxy))
    options = dict(choice.options)
    rate = options.pop(RATE, 1.0)
    if not isinstance(rate, (int, float)) or not rate > 0:
        raise ValueError(f"rate must be a positive factor on the learning rate, got {rate!r} in {cell.setting!r}")
    recipe = workload.recipe.with_(epochs=cell.length, lr=workload.recipe.lr * rate)
    plain = dataclasses.replace(choice, options=options)
    return settings_for(plain, recipe, seed=cell.seed, label_noise=workload.label_noise)


CPU = torch.device("cpu")


def run_cell(
    workload: Workload, cell: Cell, data: ImageSet, device: torch.device = CPU, folder: Path | None = None
) -> Outcome:
    """Train once and test once, at the end; on a CPU with one thread.

    With a folder, the run is saved after every epoch, and goes on from there after a stop. Its times are then those
    since the stop.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
    training = Training(settings_of(workload, cell), data, device, test_every_epoch=False)
    saved = None if folder is None else folder / f"{sha256(repr(cell).encode()).hexdigest()[:16]}.state"
    if saved is not None and saved.exists():
        with read_sealed(saved, STATE_KIND) as state:
            training.load_state_dict(state)
    began, cpu_began = time.perf_counter(), time.process_time()
    while len(training.records) < training.settings.epochs:
        training.epoch()
        if saved is not None:
            make_subfolder(saved.parent.parent, saved.parent.name)  # refuses a link, which may lead elsewhere
            write_sealed(saved, STATE_KIND, training.state_dict())
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    compute = sum(record["compute"] for record in training.records)
    if saved is not None:
        saved.unlink()
    return Outcome(cell, training.records[-1]["test_error"], compute, seconds, cpu_seconds)


def find_device(name: str) -> torch.device:
    """The device of this name. Raises ValueError if it cannot be used here.

    >>> find_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def shuffled_by_seed(cells: Iterable[Cell]) -> list[Cell]:
    """Seed by seed, and within a seed in an order drawn by that seed: a change of the machine hits all arms alike."""
    by_seed: dict[int, list[Cell]] = {}
    for cell in cells:
        by_seed.setdefault(cell.seed, []).append(cell)
    ordered = []
    for seed, of_seed in sorted(by_seed.items()):
        of_seed.sort(key=lambda cell: (cell.arm, cell.setting, cell.length))
        random.Random(seed).shuffle(of_seed)
        ordered += of_seed
    return ordered


def run_missing(
    workload: Workload,
    cells: Sequence[Cell],
    data: ImageSet,
    store: Store,
    show: Show = lambda outcome, left: None,
    *,
    device: torch.device = CPU,
) -> list[Outcome]:
    """Run the cells that have no record yet, and return the outcomes of all.

    Runs of the papers' workloads take hours, so a run that was stopped goes on from its last epoch.
    """
    missing = store.missing(shuffled_by_seed(cells))
    folder = store.file.with_suffix(".under-way") if workload.settled else None
    for number, cell in enumerate(missing, 1):
        outcome = run_cell(workload, cell, data, device, folder)
        store.add(outcome, device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device))
        show(outcome, len(missing) - number)
    return [store.outcomes[cell] for cell in cells]


def estimate_seconds(workload: Workload, cells: Sequence[Cell], data: ImageSet, device: torch.device) -> float:
    """Seconds that runs take on this device, by the time of a few batches of plain training.

    Args:
        workload: what is trained.
        cells: the runs.
        data: the workload's data.
        device: where they run.
    """
    few = min(len(data.train_labels), 20 * workload.recipe.batch_size)
    part = dataclasses.replace(data, train_images=data.train_images[:few], train_labels=data.train_labels[:few])
    training = Training(
        settings_of(workload, Cell("", "traditional", 3, 0, True)), part, device, test_every_epoch=False
    )
    training.epoch()  # the first batches are slower
    began = time.perf_counter()
    training.epoch()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    per_example = (time.perf_counter() - began) / few
    longer = {name: factor for name, (_, factor) in (workload.settled or {}).items()}
    epochs = sum(cell.length / longer.get(cell.arm, 1.0) for cell in cells)
    return epochs * len(data.train_labels) * per_example
