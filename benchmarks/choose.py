"""Choose the defaults of the ledger and the proxy on held-out training examples.

    python benchmarks/choose.py DATA RESULTS [--only TEXT]

DATA holds cifar10/, svhn/ and fashion_mnist/, each with train.parquet and test.parquet. Runs that are in RESULTS are
not repeated. How the winner is chosen stands in results/choice/PROTOCOL.md, written before the runs.
It runs on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from selective_backprop.method import Method
from selective_backprop.policies import TopKPolicy
from selective_backprop.schedules import Schedule
from selective_backprop.scorers import TrainingLossScorer
from selective_backprop_lab.data.datasets import ImageSet, load_images
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.records import environment
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Training

HELD_OUT = 10_000


class OnPlainLosses(Training):
    """The ledger remembers cross-entropy; label smoothing is in the loss that is trained on alone."""

    def __init__(self, settings: Settings, data: ImageSet, device: torch.device) -> None:
        smoothing = settings.recipe.label_smoothing
        plain = dataclasses.replace(settings, recipe=settings.recipe.with_(label_smoothing=0.0))
        super().__init__(plain, data, device, test_every_epoch=False)
        remember = self.loader.loss

        def loss(outputs: Tensor, labels: Tensor) -> Tensor:
            remember(outputs, labels)
            return F.cross_entropy(outputs, labels, label_smoothing=smoothing)

        self.loader.loss = loss


def fixed(selectivity: float, **schedule: Any) -> Method:
    """The hardest of the data set by last loss, this share of it."""
    return Method("fixed", TrainingLossScorer(max_age=10), TopKPolicy(selectivity=selectivity), Schedule(**schedule))


def half() -> Method:
    return fixed(0.5)


def two_thirds() -> Method:
    return fixed(2 / 3)


def half_then_all() -> Method:
    return fixed(0.5, end=0.9)


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method of the command line or a function of this file, and its epochs for a compute of 16."""

    method: str
    epochs: float
    selectivity: float = 1.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    training: Callable[..., Training] = Training


def of_proxy(selectivity: float, epochs: float, **options: Any) -> Arm:
    return Arm("proxy_backprop", epochs, selectivity, {"proxy": "speedrun_w8"} | options)


ARMS = {
    "plain": Arm("traditional", 16),
    "ledger 0.95": Arm("ledger_backprop", 24),
    "half": Arm("choose:half", 31),
    "ledger 0.95 by plain loss": Arm("ledger_backprop", 24, training=OnPlainLosses),
    "ledger 0.8": Arm("ledger_backprop", 31, options={"loss_share": 0.8}),
    "half by plain loss": Arm("choose:half", 31, training=OnPlainLosses),
    "random halves": Arm("repeated_random", 32, 0.5),
    "plain, half": Arm("traditional", 8),
    "plain, twice": Arm("traditional", 32),
    "two thirds": Arm("choose:two_thirds", 24),
    "ledger 0.9": Arm("ledger_backprop", 27, options={"loss_share": 0.9}),
    "half, then all": Arm("choose:half_then_all", 29),
    "proxy": of_proxy(0.5, 22, train_every=1),
    "proxy, own half": of_proxy(0.5, 25, train_every=1, train_share=0.5),
    "proxy, every 4th": of_proxy(0.5, 28, train_every=4),
    "proxy, third": of_proxy(0.35, 27, train_every=1),
    "proxy, after an epoch": of_proxy(0.5, 21, train_every=1, warmup_epochs=1),
}
WORKLOADS = {
    "cifar10 w16": ("cifar10_speedrun", "speedrun_w16", 1.0, 0.0),
    "cifar10 w32": ("cifar10_speedrun", "speedrun_w32", 0.5, 0.0),
    "svhn w16": ("svhn_speedrun", "speedrun_w16", 0.5, 0.0),
    "fashion w16": ("fashion_mnist_speedrun", "speedrun_w16", 0.5, 0.0),
    "cifar10 w16 noisy": ("cifar10_speedrun", "speedrun_w16", 1.0, 0.1),
    "svhn w16 noisy": ("svhn_speedrun", "speedrun_w16", 0.5, 0.1),
}
"""Recipe, network, length as a multiple of 16 epochs, share of wrong labels."""


def held_out(data: ImageSet) -> ImageSet:
    """The training part without the examples that are tested on, which stand in place of the test set."""
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(0))
    rest, tested = order[:-HELD_OUT], order[-HELD_OUT:]
    images, labels = data.train_images, data.train_labels
    return dataclasses.replace(
        data,
        train_images=images[rest],
        train_labels=labels[rest],
        test_images=images[tested],
        test_labels=labels[tested],
    )


def run(workload: str, name: str, seed: int, data: ImageSet) -> dict[str, Any]:
    recipe, model, scale, noise = WORKLOADS[workload]
    arm = ARMS[name]
    settings = Settings(
        recipe=find_recipe(recipe).with_(model=model, epochs=max(2, round(arm.epochs * scale))),
        method=arm.method,
        selectivity=arm.selectivity,
        options=arm.options,
        seed=seed,
        label_noise=noise,
    )
    began, cpu = time.perf_counter(), time.process_time()
    if arm.training is Training:
        training = Training(settings, data, torch.device("cpu"), test_every_epoch=False)
    else:
        training = arm.training(settings, data, torch.device("cpu"))
    while len(training.records) < settings.epochs:
        training.epoch()
    return {
        "workload": workload,
        "arm": name,
        "seed": seed,
        "epochs": settings.epochs,
        "error": training.records[-1]["test_error"],
        "compute": round(sum(record["compute"] for record in training.records), 4),
        "trained": [record["trained"] for record in training.records],
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="run what has this text in its workload and arm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.results / "runs.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["workload"], row["arm"], row["seed"]) for row in done}
    made = {key: environment()[key] for key in ("commit", "torch", "cpu", "date")}
    for seed in arguments.seeds:
        for workload, (recipe, *_) in WORKLOADS.items():
            data = None
            for name in ARMS:
                if (workload, name, seed) in known or arguments.only not in f"{workload} {name}":
                    continue
                data = data or held_out(load_images(find_recipe(recipe).dataset, data_dir=arguments.data))
                row = run(workload, name, seed, data) | {"made": made}
                with file.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(
                    {key: row[key] for key in ("workload", "arm", "seed", "error", "compute", "cpu_seconds")},
                    flush=True,
                )


if __name__ == "__main__":
    main()
