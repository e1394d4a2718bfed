"""Records as TensorBoard events: `tensorboard --logdir` on a folder of runs sets their curves side by side."""

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
    """Observer that writes each record as events in tensorboard/, against epochs.

    Events of epochs that a resumed run does again are hidden. The file is closed after the run's last epoch.

    Args:
        folder: of the run.
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
        if self._writer is None:  # only now is it known where the run goes on
            self._writer = self._make_writer(make_subfolder(self.folder, "tensorboard"), purge_step=epoch)
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag, value, epoch)
        # Before the checkpoint: an epoch that is not done again is not missing here.
        self._writer.flush()
        if epoch + 1 == training.settings.epochs:
            self.close()

    def close(self) -> None:
        """Close the file, when the run is left before its end."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def scalars(record: Record) -> dict[str, float]:
    """What is drawn, by tag."""
    chosen = {tag: record[name] for tag, name in _TAGS.items()}
    seconds = {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
    return chosen | {"selectivity": record["trained"] / record["offered"]} | seconds
