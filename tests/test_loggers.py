"""Loggers write to the real dashboards, offline, and their own readers read it back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.loggers import MLflowLogger, TensorBoardLogger, WandbLogger

TOLD = [{"step": 5.0, "epoch": 1.0, "trained": 50.0}, {"step": 9.0, "epoch": 2.0, "trained": 40.0}]
NAMES = ["selection/epoch", "selection/trained"]


def read_tensorboard(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    log = TensorBoardLogger(tmp_path / "events")
    assert not (tmp_path / "events").exists(), "nothing is opened before the first call"
    for values in TOLD:
        log(values)
    log.close()
    log.close()
    found = read_tensorboard(tmp_path / "events")
    assert sorted(found) == NAMES
    assert found["selection/trained"] == [(5, 50.0), (9, 40.0)]


def test_tensorboard_hides_what_is_done_again(tmp_path):
    pytest.importorskip("tensorboard")
    for values in (TOLD, TOLD[1:]):
        log = TensorBoardLogger(tmp_path)
        for each in values:
            log(each)
        log.close()
    assert read_tensorboard(tmp_path)["selection/trained"] == [(5, 50.0), (9, 40.0)]


# wandb and mlflow run in a process of their own: they start services and threads, and warn in their own imports.
READ_WANDB = """
import json, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def chunks(content):
    # The format of LevelDB's log: blocks of 32 KiB, in which each chunk has a header of checksum, length and type.
    position, whole = 7, b""  # the file begins with 7 bytes of its own
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        size, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        whole += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield whole
            whole = b""

def read(folder):
    (file,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    rows, info = [], {}
    for data in chunks(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({key: value for key, value in row.items() if not key.startswith("_")})
        elif kind == "run":
            info = {"project": record.run.project, "name": record.run.display_name, "id": record.run.run_id}
            info["config"] = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return rows, info
"""

LOG_TO_WANDB = """
import wandb
from selective_backprop.loggers import WandbLogger
log = WandbLogger(project="mine", name="a run", dir=sys.argv[1], mode="offline", config={"lr": 0.1})
assert not list(Path(sys.argv[1]).iterdir()), "nothing is opened before the first call"
for values in json.loads(sys.argv[2]):
    log(values)
log.close()
log.close()
Path(sys.argv[1], "own").mkdir()
own = wandb.init(project="own", dir=sys.argv[1] + "/own", mode="offline")
other = WandbLogger(own, prefix="")
other({"step": 1, "loss": 2.0})
other.close()
own.log({"mine": 1.0})  # still open
own.finish()
wandb.teardown()  # ends the process that writes the files
print(json.dumps([read(sys.argv[1]), read(sys.argv[1] + "/own")]))
"""

LOG_TO_MLFLOW = """
import json, sys
from mlflow import MlflowClient
from selective_backprop.loggers import MLflowLogger
uri, told = sys.argv[1], json.loads(sys.argv[2])
log = MLflowLogger(experiment="mine", run_name="a run", tracking_uri=uri, params={"lr": 0.1})
for values in told:
    log(values)
log.close()
log.close()
again = MLflowLogger(log.run_id, tracking_uri=uri, prefix="more/")
again(told[0])
again.close()
client = MlflowClient(uri)
run = client.get_run(log.run_id)
found = {name: [(m.step, m.value) for m in client.get_metric_history(log.run_id, name)] for name in run.data.metrics}
experiment = client.get_experiment(run.info.experiment_id).name
print(json.dumps([found, run.info.status, run.info.run_name, experiment, run.data.params]))
"""


def run_apart(code, *arguments, cwd):
    environment = os.environ | {
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "WANDB_API_KEY": "",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(sb.__file__).parent.parent),
    }
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "runs").mkdir()
    (rows, info), (own, _) = run_apart(READ_WANDB + LOG_TO_WANDB, tmp_path / "runs", json.dumps(TOLD), cwd=tmp_path)
    assert rows == [
        {"selection/step": 5, "selection/epoch": 1.0, "selection/trained": 50.0},
        {"selection/step": 9, "selection/epoch": 2.0, "selection/trained": 40.0},
    ]
    assert (info["project"], info["name"], info["config"]["lr"]) == ("mine", "a run", 0.1)
    assert own == [{"step": 1, "loss": 2.0}, {"step": 1, "mine": 1.0}]


def test_mlflow_offline(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    found, status, name, experiment, params = run_apart(LOG_TO_MLFLOW, uri, json.dumps(TOLD), cwd=tmp_path)
    assert found == {
        "selection/epoch": [[5, 1.0], [9, 2.0]],
        "selection/trained": [[5, 50.0], [9, 40.0]],
        "more/epoch": [[5, 1.0]],
        "more/trained": [[5, 50.0]],
    }
    assert (status, name, experiment, params) == ("FINISHED", "a run", "mine", {"lr": "0.1"})


def test_a_loader_tells_a_logger_by_itself(tmp_path):
    pytest.importorskip("tensorboard")
    data = TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    model, log = torch.nn.Linear(4, 2), TensorBoardLogger(tmp_path)
    loader = sb.SelectiveLoader(
        DataLoader(data, 16), model, torch.nn.CrossEntropyLoss(), sb.selective_backprop(0.5), num_epochs=2, on_stats=log
    )
    for _ in range(2):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
    log.close()
    found = read_tensorboard(tmp_path)
    assert sum(value for _, value in found["selection/trained"]) == loader.stats.trained
    assert [value for _, value in found["selection/epoch"]] == [1.0, 2.0]
    assert found["selection/trained"][-1][0] == loader.stats.batches


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: TensorBoardLogger("."), "tensorboard"),
        (lambda: WandbLogger(), "wandb"),
        (lambda: MLflowLogger(), "mlflow"),
    ],
)
def test_a_missing_package_is_named_with_the_pip_line(make, package, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*: pip install 'selective-backprop\[{package}\]'"):
        make()


def test_bad_input_is_refused(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(ValueError, match="a logger needs the number 'step'"):
        TensorBoardLogger(tmp_path)({"trained": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_a_run_and_how_to_make_one_exclude_each_other(monkeypatch):
    class Stub:
        pass

    monkeypatch.setitem(sys.modules, "wandb", Stub())
    monkeypatch.setitem(sys.modules, "mlflow", Stub())
    with pytest.raises(ValueError, match="not both: got project"):
        WandbLogger(object(), project="mine")
    with pytest.raises(ValueError, match="run_id='abc' names one"):
        MLflowLogger("abc", experiment="mine")
