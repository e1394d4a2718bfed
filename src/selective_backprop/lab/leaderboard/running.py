"""Running cells of the leaderboard, one after the other, in an order drawn beforehand."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop.lab.leaderboard.workloads import Workload
from selective_backprop.lab.runs.methods import MethodSpec
from selective_backprop.lab.runs.settings import Settings
from selective_backprop.lab.runs.training import Training
from selective_backprop.lab.study.comparison import settings_for

RATE = "rate"
"""Option of every arm: a factor on the recipe's learning rate."""
Show = Callable[[Outcome, int], None]
"""Called after each run, with the number of runs that are left."""


def settings_of(workload: Workload, cell: Cell) -> Settings:
    """All settings of a run.

    >>> from selective_backprop.lab.leaderboard.workloads import find_workload
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


def run_cell(workload: Workload, cell: Cell, data: ImageSet) -> Outcome:
    """Train once, on one thread, and test once, at the end."""
    torch.set_num_threads(1)
    training = Training(settings_of(workload, cell), data, torch.device("cpu"), test_every_epoch=False)
    began, cpu_began = time.perf_counter(), time.process_time()
    while len(training.records) < training.settings.epochs:
        training.epoch()
    before = training.preparation.seconds  # a reference network is trained before the first epoch
    seconds, cpu_seconds = before + time.perf_counter() - began, before + time.process_time() - cpu_began
    compute = sum(record["compute"] for record in training.records)
    return Outcome(cell, training.records[-1]["test_error"], compute, seconds, cpu_seconds)


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
    workload: Workload, cells: Sequence[Cell], data: ImageSet, store: Store, show: Show = lambda outcome, left: None
) -> list[Outcome]:
    """Run the cells that have no record yet, and return the outcomes of all."""
    missing = store.missing(shuffled_by_seed(cells))
    for number, cell in enumerate(missing, 1):
        outcome = run_cell(workload, cell, data)
        store.add(outcome)
        show(outcome, len(missing) - number)
    return [store.outcomes[cell] for cell in cells]
