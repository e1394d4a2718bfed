"""How long a comparison will take, from a few measured training steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.runs.methods import make_method
from selective_backprop.lab.runs.records import read_records
from selective_backprop.lab.runs.training import Settings, start
from selective_backprop.lab.study.standing import PLAIN, RANDOM

_STEPS = 12
_WARM_UP = 3  # steps that are not counted


def epochs_of_compute(entry: Entry) -> float:
    """The most compute that a run can take, in epochs of plain training, if its method selects everything."""
    settings = entry.settings
    if settings.method == RANDOM:
        return settings.epochs * settings.selectivity
    needs = make_method(settings.method, settings.selectivity, settings.options).scorer.needs
    # A reference network is usually smaller than the one that is trained, and cannot be much larger.
    before = settings.options.get("reference_epochs", 2) + 1 / 3 if settings.method == "reducible_loss" else 0.0
    return before + settings.epochs * (4 / 3 if needs.selection_pass else 1.0)


def epochs_done(entry: Entry, out: Path | None) -> int:
    """Epochs of this run that its folder already holds."""
    folder = None if out is None else out / entry.folder
    return len(read_records(folder)) if folder is not None and folder.is_dir() else 0


def seconds_left(
    entries: Sequence[Entry], load: Callable[[Settings], ImageSet], out: Path | None = None
) -> tuple[float, float]:
    """Epochs of compute that are still missing, and about how many seconds these take. Trains for a few steps."""
    left = 0.0
    for entry in entries:
        share = 1 - epochs_done(entry, out) / entry.settings.epochs
        left += share * epochs_of_compute(entry)
    if not left:
        return 0.0, 0.0
    plain = next((entry for entry in entries if entry.settings.method == PLAIN), entries[0])
    return left, left * _seconds_per_epoch(plain.settings, load(plain.settings))


def _seconds_per_epoch(settings: Settings, data: ImageSet) -> float:
    training = start(settings, data)
    times: list[float] = []
    training.model.train()
    began = time.perf_counter()
    for images, labels in itertools.islice(training.loader, _STEPS):
        loss = training.loader.loss(training.trained_model(images), labels)
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        float(loss.detach())  # waits for a GPU
        now = time.perf_counter()
        times.append((now - began) / len(labels))
        began = now
    return median(times[_WARM_UP:] or times) * training.num_examples


def in_words(seconds: float) -> str:
    """A duration as people say it.

    >>> in_words(40), in_words(200), in_words(9000)
    ('less than a minute', 'about 3 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "less than a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
