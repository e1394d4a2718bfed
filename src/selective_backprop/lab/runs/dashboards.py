"""Records of runs on dashboards: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selective_backprop.files.reading import read_json
from selective_backprop.files.writing import make_subfolder, write_whole
from selective_backprop.lab.names import unknown
from selective_backprop.lab.runs.training import Observer, Record, Settings, Training
from selective_backprop.loggers import Logger, MLflowLogger, TensorBoardLogger, WandbLogger

NAMES = ("tensorboard", "wandb", "mlflow")
PROJECT = "selective-backprop"
"""Project of Weights & Biases and experiment of MLflow. WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another."""
_IDS = "dashboards.json"

_TAGS = {
    "test/loss": "test_loss",
    "test/error": "test_error",
    "train/loss": "train_loss",
    "train/error": "train_error",
    "lr": "lr",
    "compute": "compute",
}


class Dashboard:
    """Observer that gives each record to a logger, with the epoch as the step. It closes the logger after the run."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def __call__(self, training: Training, record: Record) -> None:
        self.logger({"step": record["epoch"], **scalars(record)})
        if record["epoch"] + 1 == training.settings.epochs:
            self.close()

    def close(self) -> None:
        """Close the logger. Needed only if the run ends early."""
        self.logger.close()


def check_names(names: Sequence[str]) -> None:
    """Raise if there is no such dashboard, or if its package is not installed."""
    for name in names:
        if name not in NAMES:
            raise unknown("dashboard", name, NAMES)
        # Making a logger imports its package, and opens nothing yet.
        TensorBoardLogger(".") if name == "tensorboard" else WandbLogger() if name == "wandb" else MLflowLogger()


def make_dashboards(names: Sequence[str], folder: Path, settings: Settings) -> list[Observer]:
    """Make the observers that send the records of a run to these dashboards.

    Args:
        names: some of `NAMES`.
        folder: folder of the run. It holds the files of TensorBoard and of wandb, and the ids under which a resumed run
            goes on.
        settings: settings of the run, which the dashboards show.
    """
    return [Dashboard(_make(name, folder, settings)) for name in dict.fromkeys(names)]


def _make(name: str, folder: Path, settings: Settings) -> Logger:
    label = f"{folder.parent.name}/{folder.name}"
    if name == "tensorboard":
        return TensorBoardLogger(make_subfolder(folder, "tensorboard"), prefix="")
    if name == "wandb":
        known = _read_ids(folder).get("wandb")
        return WandbLogger(
            prefix="",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=label,
            dir=folder,
            config=settings.as_json(),
            id=known or _remember(folder, "wandb", uuid.uuid4().hex[:12]),
            **({"resume": "allow"} if known else {}),
        )
    return _MLflowRun(folder, label, settings)


class _MLflowRun:
    """Logs to the MLflow run of a folder. It remembers the run's id, which MLflow chooses."""

    def __init__(self, folder: Path, label: str, settings: Settings) -> None:
        self._folder = folder
        known = _read_ids(folder).get("mlflow")
        params = _flat(settings.as_json())
        self._logger = (
            MLflowLogger(known, prefix="")
            if known
            else MLflowLogger(experiment=_experiment(), run_name=label, params=params, prefix="")
        )

    def __call__(self, values: Any) -> None:
        known = self._logger.run_id
        self._logger(values)
        if known is None:
            _remember(self._folder, "mlflow", str(self._logger.run_id))

    def close(self) -> None:
        self._logger.close()


def _experiment() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)


def _read_ids(folder: Path) -> dict[str, str]:
    file = folder / _IDS
    content = read_json(file) if file.exists() else {}
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ValueError(f"{file} is damaged: delete it, and the run appears on dashboards as a new one")
    return content


def _remember(folder: Path, name: str, value: str) -> str:
    write_whole({folder / _IDS: (json.dumps(_read_ids(folder) | {name: value}) + "\n").encode()})
    return value


def _flat(content: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested settings, with dots between the names.

    >>> _flat({"seed": 0, "recipe": {"lr": 0.1}})
    {'seed': 0, 'recipe.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def scalars(record: Record) -> dict[str, float]:
    """The values to draw, by tag."""
    chosen = {tag: record[name] for tag, name in _TAGS.items()}
    seconds = {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
    return chosen | {"selectivity": record["trained"] / record["offered"]} | seconds
