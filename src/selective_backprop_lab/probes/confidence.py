"""How sure the model is of the right answer, for every test example (figures 8 and 9 of Jiang et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from selective_backprop.inference import NoTrace
from selective_backprop_lab.probes.files import Array, epoch_file, read_epochs, write_arrays

if TYPE_CHECKING:
    from selective_backprop_lab.runs.training import Record, Training


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
        folder: folder of the run; arrays go to probes/confidence-0003.pt.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, training: Training, record: Record) -> None:
        confidence, correct = [], []
        with NoTrace(training.model, "eval")():
            for outputs, labels in training.test_outputs():
                confidence.append(outputs.softmax(1).gather(1, labels[:, None]).squeeze(1).half().cpu())
                correct.append((outputs.argmax(1) == labels).cpu())
        write_arrays(
            epoch_file(self.folder / "probes", "confidence", record["epoch"]),
            confidence=torch.cat(confidence).numpy(),
            correct=torch.cat(correct).numpy(),
        )


def read_confidence(folder: Path) -> Confidence:
    """Read what `ConfidenceProbe` wrote for the run in this folder."""
    epochs, (confidence, correct) = read_epochs(folder / "probes", "confidence", confidence="f", correct="b")
    return Confidence(epochs, confidence, correct)
