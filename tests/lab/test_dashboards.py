"""Records of real runs with digits on dashboards, read back by the dashboards' own readers."""

import json
import os

import pytest

from selective_backprop.lab.runs.dashboards import Dashboard, check_names, make_dashboards
from selective_backprop.lab.runs.training import Training, advance, train
from selective_backprop.loggers import TensorBoardLogger
from tests.lab.test_ledger_log import CPU, DIGITS, settings_for, train_with_crash
from tests.test_loggers import READ_WANDB, read_tensorboard, run_apart

pytest.importorskip("tensorboard")


def as_events(records, value):
    return [(record["epoch"], pytest.approx(value(record), rel=1e-6)) for record in records]


def check(events, records):
    for tag in ("test/loss", "test/error", "train/loss", "train/error", "lr", "compute"):
        name = tag.replace("/", "_")
        assert events[tag] == as_events(records, lambda record: record[name])  # noqa: B023
    assert events["selectivity"] == as_events(records, lambda record: record["trained"] / record["offered"])
    for phase in records[0]["seconds"]:
        assert events[f"seconds/{phase}"] == as_events(records, lambda record: record["seconds"][phase])  # noqa: B023
    assert len(events) == 7 + len(records[0]["seconds"])


def test_every_record_is_drawn_against_its_epoch(tmp_path):
    observers = make_dashboards(["tensorboard"], tmp_path, settings_for())
    records = train(settings_for(), DIGITS, device=CPU, observers=observers)
    assert len(records) == 3
    check(read_tensorboard(tmp_path / "tensorboard"), records)


def test_epochs_done_again_are_drawn_once(tmp_path):
    made = []

    def observers(path):
        made.extend(make_dashboards(["tensorboard"], path, settings_for()))
        return made[-1:]

    records = train_with_crash(settings_for(), tmp_path, observers, epoch=1)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    check(read_tensorboard(tmp_path / "tensorboard"), records)
    for dashboard in made:
        dashboard.close()


def test_events_can_be_read_while_the_run_goes_on(tmp_path):
    training, dashboard = Training(settings_for(), DIGITS, CPU), Dashboard(TensorBoardLogger(tmp_path, prefix=""))
    for epochs in (1, 2):
        advance(training, observers=[dashboard])
        assert [step for step, _ in read_tensorboard(tmp_path)["test/error"]] == list(range(epochs))
    dashboard.close()
    dashboard.close()


def test_a_wrong_name_is_told_at_once():
    with pytest.raises(ValueError, match=r"no dashboard .tensorbord.: did you mean tensorboard\?"):
        check_names(["tensorbord"])
    with pytest.raises(ValueError, match="there is no dashboard 'neptune': there are tensorboard, wandb, mlflow"):
        check_names(["neptune"])


COMMANDS = """
import json, sys
from pathlib import Path
from selective_backprop.lab.cli import app

train = ["train", "--epochs", "2", "--model", "strided_cnn", "--quiet", "--log", "wandb,mlflow", "--out", "run"]
try:
    app(train)
except SystemExit as end:
    assert not end.code
import wandb
wandb.teardown()  # ends the process that writes the files
rows, info = read("run")
ids = json.loads(Path("run/dashboards.json").read_text())
assert info["id"] == ids["wandb"]

from mlflow import MlflowClient
client = MlflowClient()
mlflow_run = client.get_run(ids["mlflow"])
history = [(m.step, m.value) for m in client.get_metric_history(ids["mlflow"], "test/error")]
print(json.dumps([rows, info, history, mlflow_run.info.status, mlflow_run.data.params]))
"""


def test_a_run_appears_on_wandb_and_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    rows, info, history, status, params = run_apart(READ_WANDB + COMMANDS, cwd=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    errors = [record["test_error"] for record in records]
    assert [(row["step"], row["test/error"]) for row in rows] == list(enumerate(errors))
    assert history == [list(pair) for pair in enumerate(errors)]
    assert (info["project"], info["config"]["method"]) == ("selective-backprop", "ledger_backprop")
    assert (status, params["recipe.model"]) == ("FINISHED", "strided_cnn")
    assert os.listdir(tmp_path / "run" / "wandb")
