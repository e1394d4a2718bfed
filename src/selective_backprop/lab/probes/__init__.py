"""Probes look at a run after each epoch and write what they see into its folder. They do not change the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from selective_backprop.lab.names import unknown
from selective_backprop.lab.probes.confidence import Confidence as Confidence
from selective_backprop.lab.probes.confidence import ConfidenceProbe as ConfidenceProbe
from selective_backprop.lab.probes.confidence import read_confidence as read_confidence
from selective_backprop.lab.probes.examples import ExampleProbe as ExampleProbe
from selective_backprop.lab.probes.examples import ExampleState as ExampleState
from selective_backprop.lab.probes.examples import read_examples as read_examples
from selective_backprop.lab.probes.gradients import Agreement as Agreement
from selective_backprop.lab.probes.gradients import GradientProbe as GradientProbe
from selective_backprop.lab.probes.gradients import read_gradients as read_gradients

if TYPE_CHECKING:
    from selective_backprop.lab.runs.training import Observer, Record, Training

NAMES = ("gradients", "confidence", "examples")


@dataclass(frozen=True)
class AtEpochs:
    """An observer that is called only at some epochs.

    Args:
        observer: the observer to call.
        epochs: epochs counted from 0; None: the first, the middle and the last epoch of the run.
    """

    observer: Observer
    epochs: Sequence[int] | None = None

    def __call__(self, training: Training, record: Record) -> None:
        length = training.settings.epochs
        if record["epoch"] in ((0, length // 2, length - 1) if self.epochs is None else self.epochs):
            self.observer(training, record)


def make_probes(
    names: Sequence[str],
    folder: Path,
    at: Sequence[int] | None = None,
    *,
    epochs: int | None = None,
    examples: Sequence[int] | None = None,
) -> list[Observer]:
    """Make probes by name. They write to `folder / "probes"`.

    Args:
        names: some of `NAMES`.
        folder: folder of the run.
        at: epochs, from 0, at which to probe gradients and confidence; None: first, middle, last. Examples are cheap
            and probed in every epoch.
        epochs: length of the run, if known. An epoch in `at` beyond it is then an error.
        examples: ids of training examples; None: five, spread evenly over the data set.

    >>> len(make_probes(["gradients", "examples"], Path("run"), [0, 5, 9], epochs=10))
    2
    """
    for name in names:
        if name not in NAMES:
            raise unknown("probe", name, NAMES)
    if at is not None:
        wrong = [epoch for epoch in at if epoch < 0 or (epochs is not None and epoch >= epochs)]
        if wrong or not at:
            span = f"0 to {epochs - 1}" if epochs is not None else "0 or more"
            raise ValueError(f"epochs to probe must be {span}, got {wrong[0] if wrong else 'none'}")
    makers: dict[str, Callable[[], Observer]] = {
        "gradients": lambda: AtEpochs(GradientProbe(folder), at),
        "confidence": lambda: AtEpochs(ConfidenceProbe(folder), at),
        "examples": lambda: ExampleProbe(folder, examples),
    }
    return [makers[name]() for name in dict.fromkeys(names)]
