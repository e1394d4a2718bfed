"""How sure the model is of the right answer, for every test example (figures 8 and 9 of Jiang et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from selective_backprop.inference import NoTrace
from selective_backprop.lab.probes.files import (
    Array,
    epoch_file,
    epochs_written,
    read_arrays,
    require_arrays,
    stack,
    write_arrays,
)

if TYPE_CHECKING:
    from selective_backprop.lab.runs.training import Record, Training

_CHUNK = 1000  # test examples at a time


@dataclass(frozen=True, eq=False)
class Confidence:
    """Confidence in the true class, by epoch and test example."""

    epochs: list[int]
    confidence: Array
    """(epochs, examples) float16: softmax probability of the true class."""
    correct: Array
    """(epochs, examples) bool: whether the true class has the highest probability."""


class ConfidenceProbe:
    """Records the confidence in the true class and whether it won, for every test example, in 3 bytes each.

    Args:
        folder: folder of the run; arrays go to probes/confidence-0003.npz.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, training: Training, record: Record) -> None:
        confidence, correct = [], []
        with NoTrace(training.model, "eval")():
            for images, labels in zip(*(torch.split(part, _CHUNK) for part in training.test), strict=True):
                outputs = training.model(training.normalise(images.to(training.device))).cpu()
                confidence.append(outputs.softmax(1).gather(1, labels[:, None]).squeeze(1).half())
                correct.append(outputs.argmax(1) == labels)
        write_arrays(
            epoch_file(self.folder / "probes", "confidence", record["epoch"]),
            confidence=torch.cat(confidence).numpy(),
            correct=torch.cat(correct).numpy(),
        )


def read_confidence(folder: Path) -> Confidence:
    """Read what `ConfidenceProbe` wrote for the run in this folder."""
    folder = folder / "probes"
    epochs = epochs_written(folder, "confidence")
    files = [read_arrays(epoch_file(folder, "confidence", epoch), "confidence", "correct") for epoch in epochs]
    confidence, correct = (stack(list(arrays), folder) for arrays in zip(*files, strict=True))
    require_arrays(folder, confidence=(confidence, "f"), correct=(correct, "b"))
    return Confidence(epochs, confidence, correct)
