"""Loggers for dashboards: TensorBoard, Weights & Biases and MLflow.

A logger is called with a flat dict of numbers, as `on_stats=` of `SelectiveLoader` gives it. The number "step" says
where on the horizontal axis the others belong. Nothing is opened before the first call.

>>> import selective_backprop as sb, tempfile, torch
>>> data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
>>> model, loss_fn = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()
>>> log = TensorBoardLogger(tempfile.mkdtemp())
>>> batches = torch.utils.data.DataLoader(data, batch_size=16)
>>> loader = sb.SelectiveLoader(batches, model, loss_fn, sb.random_backprop(0.5), on_stats=log)
>>> for inputs, targets in loader:
...     loader.loss(model(inputs), targets).backward()
>>> log.close()
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

PREFIX = "selection/"
"""What the names of statistics begin with on a dashboard."""


class Logger(Protocol):
    """What a logger is: a function of a flat dict, which can be closed."""

    def __call__(self, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Every:
    """Also calls a logger after every n training batches, and not only after every epoch.

    Args:
        every: n.
        on_stats: the logger, or any other function of a flat dict.

    >>> Every(100, print).every
    100
    """

    def __init__(self, every: int, on_stats: Callable[[dict[str, float]], None]) -> None:
        self.every, self._on_stats = every, on_stats

    def __call__(self, values: dict[str, float]) -> None:
        self._on_stats(values)


class TensorBoardLogger:
    """Writes events that `tensorboard --logdir` shows.

    Events at steps that a resumed run repeats are hidden.

    Args:
        folder: folder for the events.
        prefix: what the names of tags begin with.
    """

    def __init__(self, folder: str | os.PathLike[str], *, prefix: str = PREFIX) -> None:
        self.folder, self.prefix = folder, prefix
        self._make_writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer: Any = None

    def __call__(self, values: Mapping[str, float]) -> None:
        step, rest = _split(values)
        if self._writer is None:  # the step at which a resumed run continues is known only now
            self._writer = self._make_writer(os.fspath(self.folder), purge_step=step)
        for name, value in rest.items():
            self._writer.add_scalar(f"{self.prefix}{name}", value, step)
        self._writer.flush()  # so that nothing is missing after a kill

    def close(self) -> None:
        """Close the file. Another call opens a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbLogger:
    """Logs to a run of Weights & Biases: online, or in a folder with mode="offline", which `wandb sync` uploads later.

    The horizontal axis is the number "step", also in a run that counts steps of its own.

    Args:
        run: a run that you made by `wandb.init`. It stays open. By default a new run is made.
        prefix: what the names of metrics begin with.
        init: arguments of `wandb.init` for a new run: project, name, dir, mode, config and so on.
    """

    def __init__(self, run: Any = None, *, prefix: str = PREFIX, **init: Any) -> None:
        if run is not None and init:
            raise ValueError(f"give a run of wandb or the arguments for a new one, not both: got {', '.join(init)}")
        self.prefix = prefix
        self._wandb = _import("wandb", "wandb")
        self._given, self._init = run, init
        self._run: Any = None

    def __call__(self, values: Mapping[str, float]) -> None:
        step, rest = _split(values)
        if self._run is None:
            # create_new: a run that the program has made for itself goes on beside this one.
            self._run = self._given or self._wandb.init(**{"reinit": "create_new", **self._init})
            self._run.define_metric(f"{self.prefix}step", hidden=True)
            self._run.define_metric(f"{self.prefix}*", step_metric=f"{self.prefix}step")
        self._run.log({f"{self.prefix}{name}": value for name, value in {"step": step, **rest}.items()})

    def close(self) -> None:
        """Finish the run, unless you made it yourself."""
        if self._run is not None and self._given is None:
            self._run.finish()
        self._run = None


class MLflowLogger:
    """Logs metrics to a run of MLflow: on a server, or offline in a file with tracking_uri="sqlite:///mlflow.db".

    Args:
        run_id: id of a run that exists. It stays open. By default a new run is made.
        experiment: name of the experiment that a new run belongs to. It is made if it does not exist.
        run_name: name of a new run.
        tracking_uri: where to log; by default as MLflow is set up, for example by MLFLOW_TRACKING_URI.
        params: parameters to log in a new run, such as the settings of the training.
        prefix: what the names of metrics begin with.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        params: Mapping[str, Any] | None = None,
        prefix: str = PREFIX,
    ) -> None:
        if run_id is not None and (experiment, run_name, params) != (None, None, None):
            raise ValueError(f"experiment, run_name and params are for a new run, but run_id={run_id!r} names one")
        self.run_id, self.prefix = run_id, prefix
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self.params = dict(params or {})
        self._mlflow = _import("mlflow", "mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        self._owned = run_id is None
        self._client: Any = None

    def __call__(self, values: Mapping[str, float]) -> None:
        step, rest = _split(values)
        if self._client is None:
            self._client = self._mlflow.MlflowClient(self.tracking_uri)
            if self.run_id is None:
                self.run_id = self._new_run()
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(f"{self.prefix}{name}", value, now, step) for name, value in rest.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _new_run(self) -> str:
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=self.run_name)
        params = [self._entities.Param(key, str(value)) for key, value in self.params.items()]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def close(self) -> None:
        """Mark the run as finished, unless you made it yourself."""
        if self._client is not None and self._owned:
            self._client.set_terminated(self.run_id)
        self._client = None


def _split(values: Mapping[str, float]) -> tuple[int, dict[str, float]]:
    if "step" not in values:
        raise ValueError(f"a logger needs the number 'step', to know where the others belong: got {', '.join(values)}")
    return int(values["step"]), {name: float(value) for name, value in values.items() if name != "step"}


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'selective-backprop[{extra}]'") from error
