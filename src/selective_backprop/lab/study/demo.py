"""Plain training, random subsets and three methods side by side on scikit-learn's digits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from selective_backprop.lab.cli.bars import Bars
from selective_backprop.lab.data.datasets import ImageSet, load_images
from selective_backprop.lab.probes import make_probes
from selective_backprop.lab.report import write_report
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.training import Observer, Settings
from selective_backprop.lab.study.comparison import Design, compare
from selective_backprop.lab.study.standing import alerts, standings, winner
from selective_backprop.lab.study.tables import READING, standing_table

_OPTIONS = {"history_size": 512, "warmup_epochs": 1}
METHODS = [
    Choice("ledger", "ledger_backprop"),
    Choice("SB", "selective_backprop", 1 / 3, _OPTIONS),
    Choice("Stale-SB", "stale_selective_backprop", 1 / 3, _OPTIONS | {"every": 3}),
]
SMALL = (
    "These are 898 digits to train on and 899 to test on, where one test image is 0.11% of error: enough to see how a "
    "comparison works, too small to decide anything. What to try next:"
)
NEXT = (
    "selective-backprop compare --recipe fashion_mnist_small --data-dir DATA   # a published data set as parquet files",
    "selective-backprop compare --dataset FOLDER --model resnet20             # your own images, a folder per class",
)


def halves(settings: Settings) -> ImageSet:
    """The data of a run."""
    return halves_of(settings.seed)


def halves_of(seed: int) -> ImageSet:
    """Split the data by the seed into halves for training and testing, so that a tenth of a percent means something."""
    data = load_images("digits")
    images, labels = torch.cat([data.train_images, data.test_images]), torch.cat([data.train_labels, data.test_labels])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    return ImageSet("digits", images[train], labels[train], images[test], labels[test], data.classes)


def run(epochs: int, seeds: int, report: Path) -> None:
    """Train, show the progress, print the verdict, and write the report to a file. The runs themselves are not kept."""
    console, recipe = Console(), find_recipe("digits").with_(epochs=epochs)
    with TemporaryDirectory() as folder:
        with Bars(console, seeds) as bars:
            design = Design(METHODS, recipe, [epochs])
            results = compare(
                design, halves, Path(folder), seeds=seeds, observers=partial(_watch, epochs=epochs), show=bars.show
            )
        found = standings(results.arms())
        console.print(standing_table(found).rich(f"digits, {epochs} epochs, {seeds} seeds"))
        for sentence in [winner(found), *alerts(found)]:
            console.print(sentence.replace("**", ""), markup=False, highlight=False)
        size = len(halves_of(0).test_labels)
        plural = "" if seeds == 1 else "s"
        console.print(READING.format(split="test set", size=size, seeds=seeds, plural=plural), highlight=False)
        console.print(SMALL, highlight=False)
        for command in NEXT:
            console.print(command, markup=False, highlight=False, soft_wrap=True)
        write_report([Path(folder)], report, load=lambda run: halves_of(run.seed))
    console.print(f"report: {report.resolve()}", markup=False, highlight=False, soft_wrap=True)


def _watch(folder: Path, settings: Settings, epochs: int) -> list[Observer]:
    """Log the ledger of every run. Probe only full-length runs of the first seed, because probes take long."""
    looks = settings.seed == 0 and settings.epochs == epochs
    return [LedgerLog(folder), *make_probes(["gradients", "confidence"] if looks else [], folder)]
