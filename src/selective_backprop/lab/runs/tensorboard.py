"""Write records as TensorBoard events. `tensorboard --logdir` on a folder of runs shows their curves together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selective_backprop.files.writing import make_subfolder
from selective_backprop.lab.runs.training import Record, Training

_TAGS = {
    "test/loss": "test_loss",
    "test/error": "test_error",
    "train/loss": "train_loss",
    "train/error": "train_error",
    "lr": "lr",
    "compute": "compute",
}


class TensorBoardEvents:
    """Observer that writes each record as events to tensorboard/, with the epoch as the step.

    Events of epochs that a resumed run repeats are hidden. The file is closed after the run's last epoch.

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'selective-backprop[tensorboard]'") from error
        self.folder = folder
        self._make_writer: Any = SummaryWriter
        self._writer: Any = None

    def __call__(self, training: Training, record: Record) -> None:
        epoch = record["epoch"]
        if self._writer is None:  # the epoch at which the run continues is known only now
            self._writer = self._make_writer(make_subfolder(self.folder, "tensorboard"), purge_step=epoch)
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag, value, epoch)
        # Flushed before the checkpoint is saved, so that no epoch is missing after a kill.
        self._writer.flush()
        if epoch + 1 == training.settings.epochs:
            self.close()

    def close(self) -> None:
        """Close the file. Needed only if the run ends early."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def scalars(record: Record) -> dict[str, float]:
    """The values to draw, by tag."""
    chosen = {tag: record[name] for tag, name in _TAGS.items()}
    seconds = {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
    return chosen | {"selectivity": record["trained"] / record["offered"]} | seconds
