"""Compare a ledger of losses per example with one of batch losses, as running means (BLS, arXiv 2604.04681).

    python benchmarks/batch_loss.py DATA RESULTS.jsonl [--table]

DATA holds mnist/ and svhn/, each with train.parquet and test.parquet. No test set is used: errors are on the training
examples that the leaderboard holds out. All arms go through `SelectiveSampler` with full batches, so they differ only
in what `update` is told. Runs that are in the results file are not repeated. The table of all runs is printed at the
end. What the result decides stands in results/batch-loss/PROTOCOL.md, written before the runs. It runs on one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop_lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop_lab.data.datasets import ImageDataset, ImageSet
from selective_backprop_lab.leaderboard.workloads import find_workload
from selective_backprop_lab.models import make_model
from selective_backprop_lab.runs.recipes import Recipe
from selective_backprop_lab.runs.training import Prepare, make_optimizer
from selective_backprop_lab.study.frontier import Budget, Frontier

WORKLOADS = ("mnist", "svhn")
PLAIN = (2, 3, 4, 6, 8, 12)
"""Lengths of plain training, in epochs."""
LENGTHS = (6, 9, 12, 18)
"""Lengths of the other arms."""
SEEDS = (4001, 4002, 4003)
SELECTIVITY = 0.667


class Arm(NamedTuple):
    """A method, and whether it is told only the loss of each batch."""

    method: Callable[[], sb.Method]
    of_batch: bool = False


ARMS = {
    "plain": Arm(sb.traditional),
    "random subsets": Arm(lambda: sb.repeated_random(SELECTIVITY)),
    "percentile, losses per example": Arm(lambda: sb.methods.ledger_percentile(SELECTIVITY)),
    "percentile, batch losses": Arm(lambda: sb.methods.ledger_percentile(SELECTIVITY), of_batch=True),
    "ledger, losses per example": Arm(sb.ledger_backprop),
    "ledger, batch losses": Arm(sb.ledger_backprop, of_batch=True),
    "InfoBatch, losses per example": Arm(sb.infobatch),
    "InfoBatch, batch losses": Arm(sb.infobatch, of_batch=True),
}


class Run(NamedTuple):
    """One training run."""

    workload: str
    arm: str
    epochs: int
    seed: int


Results = dict[Run, tuple[float, float]]
"""Held-out error and compute of each run."""


def planned_runs() -> Iterator[Run]:
    """List all runs, seed by seed."""
    for workload in WORKLOADS:
        for seed in SEEDS:
            for arm in ARMS:
                yield from (Run(workload, arm, epochs, seed) for epochs in (PLAIN if arm == "plain" else LENGTHS))


def train(recipe: Recipe, data: ImageSet, arm: Arm, epochs: int, seed: int) -> tuple[float, float]:
    """Train once. Returns the held-out error, and compute in epochs of plain training."""
    model = make_model(recipe.model, num_classes=data.num_classes, channels=data.train_images.shape[1], seed=seed)
    normalise = Normalise(*measure_mean_std(data.train_images))
    prepare = Prepare(Augment(padding=recipe.padding, flip=recipe.flip, cutout=recipe.cutout, seed=seed), normalise)
    dataset = ImageDataset(data.train_images, data.train_labels)
    size = recipe.batch_size
    sampler = sb.SelectiveSampler(len(dataset), arm.method(), batch_size=size, num_epochs=epochs, seed=seed)
    loader = DataLoader(dataset, size, sampler=sampler, collate_fn=dataset.collate, drop_last=True)
    optimizer = make_optimizer(recipe, model.parameters(), torch.device("cpu"))
    model.train()
    for epoch in range(epochs):
        done = 0
        for images, labels in loader:
            # The rate falls with the candidates offered, as if they were spread evenly over the epoch's batches.
            optimizer.param_groups[0]["lr"] = recipe.lr_at((epoch + done / len(sampler)) / epochs)
            images, labels = prepare((images, labels))
            losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
            weights = sampler.update(losses.detach().mean() if arm.of_batch else losses)
            optimizer.zero_grad()
            (losses * weights).mean().backward()
            optimizer.step()
            done += len(labels)
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(normalise(images)) for images in data.test_images.split(1000)])
    return float((outputs.argmax(1) != data.test_labels).float().mean()), sampler.stats.trained / len(dataset)


def table(results: Results) -> str:
    """Error, compute and multiplier against plain training of every arm at every length, as means over seeds."""
    lines = [
        "| workload | arm | epochs | error | compute | M to plain training |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for workload in WORKLOADS:
        groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for run, outcome in results.items():
            if run.workload == workload:
                groups.setdefault((run.arm, run.epochs), []).append(outcome)
        budgets = {
            key: Budget(tuple(error for error, _ in runs), tuple(compute for _, compute in runs))
            for key, runs in sorted(groups.items(), key=lambda item: (list(ARMS).index(item[0][0]), item[0][1]))
        }
        plain = [budget for (arm, _), budget in budgets.items() if arm == "plain"]
        for (arm, epochs), budget in budgets.items():
            multiple = "" if arm == "plain" or not plain else str(Frontier(plain).multiple(budget))
            numbers = f"{100 * budget.error:.2f}% | {budget.cost:.2f} | {multiple}"
            lines.append(f"| {workload} | {arm} | {epochs} | {numbers} |")
    return "\n".join(lines)


def read(file: Path) -> Results:
    """Read the results of earlier runs."""
    lines = [json.loads(line) for line in file.open()] if file.exists() else []
    return {Run(**{name: one[name] for name in Run._fields}): (one["error"], one["compute"]) for one in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the image sets")
    parser.add_argument("results", type=Path, help="file of results, one JSON object a line; made or added to")
    parser.add_argument("--table", action="store_true", help="print the table only, and train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = read(options.results)
    loaded: dict[str, ImageSet] = {}
    for run in () if options.table else planned_runs():
        if run in results:
            continue
        workload = find_workload(run.workload)
        if run.workload not in loaded:
            loaded = {run.workload: workload.load(options.data, held_out=True)}
        error, compute = results[run] = train(
            workload.recipe, loaded[run.workload], ARMS[run.arm], run.epochs, run.seed
        )
        with options.results.open("a") as file:
            file.write(json.dumps({**run._asdict(), "error": round(error, 6), "compute": round(compute, 4)}) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
