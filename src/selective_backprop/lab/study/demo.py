"""Traditional, Selective-Backprop and Stale-SB side by side on scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from selective_backprop.lab.cli.bars import Bars
from selective_backprop.lab.data.datasets import ImageSet, load_images
from selective_backprop.lab.probes import make_probes
from selective_backprop.lab.report import write_report
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.experiment import Entry, Results, run_in_turns
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.training import Observer, Settings
from selective_backprop.lab.study.comparison import settings_for
from selective_backprop.lab.study.curves import Curve, speed_up
from selective_backprop.lab.study.tables import TextTable, final_error

_OPTIONS = {"history_size": 512, "warmup_epochs": 1}
METHODS = [
    Choice("Traditional", "traditional"),
    Choice("SB", "selective_backprop", 1 / 3, _OPTIONS),
    Choice("Stale-SB", "stale_selective_backprop", 1 / 3, _OPTIONS | {"every": 3}),
]
FACTORS = (1.2, 1.4)
READING = (
    "Error on the test set; passes in examples, selection passes included. Speed-ups are in wall-clock time, "
    "evaluation excluded, to 1.2x and 1.4x of Traditional's final error, in brackets the lowest and highest of a seed. "
    "So small a task shows how it works, not how much it gains."
)


def halves(settings: Settings) -> ImageSet:
    """The data of a run."""
    return halves_of(settings.seed)


def halves_of(seed: int) -> ImageSet:
    """Half for training, half for testing, so that a tenth of a percent means something; split by the seed."""
    data = load_images("digits")
    images, labels = torch.cat([data.train_images, data.test_images]), torch.cat([data.train_labels, data.test_labels])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    return ImageSet("digits", images[train], labels[train], images[test], labels[test], data.classes)


def run(epochs: int, seeds: int, report: Path) -> None:
    """Train, show the progress, print the table, and write the report to a file. The runs themselves are not kept."""
    console, recipe = Console(), find_recipe("digits").with_(epochs=epochs)
    results: Results = {}
    with TemporaryDirectory() as folder:
        with Bars(console, seeds) as bars:
            for seed in range(seeds):
                entries = [Entry(choice.label, settings_for(choice, recipe, seed=seed)) for choice in METHODS]
                results |= run_in_turns(entries, halves, Path(folder), observers=_watch, show=bars.show)
        console.print(table_of(results).rich(f"digits, {epochs} epochs, mean of {seeds} seeds"))
        console.print(READING)
        write_report([Path(folder)], report, load=lambda run: halves_of(run.seed))
    console.print(f"report: {report.resolve()}", markup=False, highlight=False, soft_wrap=True)


def _watch(folder: Path, settings: Settings) -> list[Observer]:
    probes = ["gradients", "confidence"] if settings.seed == 0 else []  # of all seeds they would take as long again
    return [LedgerLog(folder), *make_probes(probes, folder)]


def table_of(results: Results) -> TextTable:
    """Error, seconds, passes and speed-up of each method."""
    curves = {
        choice.label: [Curve.of(records) for entry, records in results.items() if entry.label == choice.label]
        for choice in METHODS
    }
    rows = []
    for label, by_seed in curves.items():
        runs = [records for entry, records in results.items() if entry.label == label]
        scored, trained = (fmean(sum(r[name] for r in records) for records in runs) for name in ("scored", "trained"))
        row = [label, final_error(by_seed), f"{fmean(curve.seconds[-1] for curve in by_seed):.1f}"]
        row += [f"{scored + trained:,.0f}", f"{trained:,.0f}"]
        rows.append(row + [str(speed_up(curves["Traditional"], by_seed, factor, "seconds")) for factor in FACTORS])
    return TextTable(["method", "error", "seconds", "forward", "backward", *(f"to {f}x" for f in FACTORS)], rows)
