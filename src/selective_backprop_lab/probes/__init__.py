"""Probes look at a run after each epoch and write what they see into its folder. They do not change the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from selective_backprop_lab.names import unknown
from selective_backprop_lab.probes.confidence import Confidence as Confidence
from selective_backprop_lab.probes.confidence import ConfidenceProbe as ConfidenceProbe
from selective_backprop_lab.probes.confidence import read_confidence as read_confidence
from selective_backprop_lab.probes.gradients import GradientProbe as GradientProbe
from selective_backprop_lab.probes.gradients import Gradients as Gradients
from selective_backprop_lab.probes.gradients import read_gradients as read_gradients

if TYPE_CHECKING:
    from selective_backprop_lab.runs.training import Observer, Record, Training

_PROBES: dict[str, Callable[[Path], Observer]] = {"gradients": GradientProbe, "confidence": ConfidenceProbe}


def make_probes(names: Sequence[str], folder: Path) -> list[Observer]:
    """Make probes by name. They look at three epochs, and write to `folder / "probes"`.

    >>> len(make_probes(["gradients", "confidence"], Path("run")))
    2
    """
    for name in names:
        if name not in _PROBES:
            raise unknown("probe", name, _PROBES)
    return [_at_three_epochs(_PROBES[name](folder)) for name in dict.fromkeys(names)]


def _at_three_epochs(observer: Observer) -> Observer:
    """Call an observer in the first, the middle and the last epoch of a run."""

    def look(training: Training, record: Record) -> None:
        if record["epoch"] in (0, (length := training.settings.epochs) // 2, length - 1):
            observer(training, record)

    return look
