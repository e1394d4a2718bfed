"""Plain training, random subsets and two methods side by side on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from selective_backprop_lab.data.datasets import ImageSet, load_images
from selective_backprop_lab.probes import make_probes
from selective_backprop_lab.report import Run, write_report
from selective_backprop_lab.runs.experiment import Entry, Show
from selective_backprop_lab.runs.ledger_log import LedgerLog
from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Observer, Settings
from selective_backprop_lab.study.comparison import Design, train_all
from selective_backprop_lab.study.standing import Standings, standings

METHODS = [
    MethodSpec("ledger", "ledger_backprop"),
    MethodSpec("SB", "selective_backprop", 1 / 3, {"history_size": 512, "warmup_epochs": 1}),
]
NUM_TEST = 899
"""Images to test on."""


def halves(run: Settings | Run) -> ImageSet:
    """Split the data by the seed into halves for training and testing, so that a tenth of a percent means something."""
    data = load_images("digits")
    images, labels = torch.cat([data.train_images, data.test_images]), torch.cat([data.train_labels, data.test_labels])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(run.seed))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    return ImageSet("digits", images[train], labels[train], images[test], labels[test], data.classes)


def planned(lengths: Sequence[int], seeds: int) -> list[list[Entry]]:
    """All runs of the demo by seed.

    Args:
        lengths, seeds: lengths of the runs in epochs, and runs per method and length.
    """
    design = Design(METHODS, find_recipe("digits").with_(epochs=max(lengths)), lengths)
    return [design.entries(seed) for seed in range(seeds)]


def run(by_seed: Sequence[Sequence[Entry]], report: Path, *, show: Show = lambda entry, record: None) -> Standings:
    """Train what was planned, and write the report to a file. The runs themselves are not kept."""
    longest = max(entry.settings.epochs for entry in by_seed[0])
    with TemporaryDirectory() as folder:
        arms = train_all(by_seed, halves, Path(folder), observers=partial(_watch, longest=longest), show=show)
        write_report([Path(folder)], report, load=halves)
    return standings(arms)


def _watch(folder: Path, settings: Settings, longest: int) -> list[Observer]:
    """Log the ledger of every run. Probe only the longest runs of the first seed, because probes take long."""
    looks = settings.seed == 0 and settings.epochs == longest
    return [LedgerLog(folder), *make_probes(["gradients", "confidence"] if looks else [], folder)]
