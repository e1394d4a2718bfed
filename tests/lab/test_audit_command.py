"""The command audit: with recorded dynamics, without them, and with wrong input."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch

import selective_backprop as sb
from selective_backprop.dynamics import Dynamics
from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.report import write_report
from selective_backprop_lab.runs.ledger_log import LedgerLog
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.training import Settings
from tests.lab.command_line import run, text_of
from tests.lab.runs import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two epochs with dynamics, and one without."""
    out, data = tmp_path_factory.mktemp("runs"), load_images("digits")
    for name, record in (("with", "dynamics"), ("without", None)):
        recipe = find_recipe("digits").with_(epochs=2, model="strided_cnn")
        settings = Settings(recipe=recipe, method="ledger_backprop", selectivity=0.5, record=record)
        with RunFolder(out / name, settings.as_json(), data.fingerprint) as place:
            train(settings, data, folder=place, observers=[LedgerLog(out / name)])
    return out


def test_a_recorded_run_is_audited(folder, tmp_path):
    done = run("audit", folder / "with", "--out", tmp_path / "a.csv", "--diet", tmp_path / "d.pt", "--json")
    assert done.returncode == 0, text_of(done)
    found = json.loads(done.stdout)
    assert found["examples"] == 1437 and [row["group"] for row in found["classes"]] == list("0123456789")
    with (tmp_path / "a.csv").open() as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == list(range(1437))
    assert len(sb.pruning.load_scores(tmp_path / "d.pt")) == 1437
    again = run("audit", folder / "with", "--out", tmp_path / "a.csv")
    assert again.returncode != 0 and "is there already" in text_of(again)


def test_the_suggested_method_trains_on_what_is_kept(folder, tmp_path):
    dynamics = Dynamics.load(folder / "with" / "dynamics.pt")
    (tmp_path / "run").mkdir()
    ids, labels = torch.arange(1437), torch.from_numpy(dynamics.labels.astype(np.float32))
    wrong = ids % 10 == 0
    values = torch.stack([torch.where(wrong, -5.0, 5.0), torch.where(wrong, 0.01, 0.99), (labels + 1) % 10, labels], 1)
    made = Dynamics(1437)
    for epoch in range(3):
        made.record(ids, torch.where(wrong, 5.0, 0.01), epoch, values)
    made.save(tmp_path / "run" / "dynamics.pt")
    done = run("audit", tmp_path / "run", "--diet", tmp_path / "d.pt", "--json")
    assert done.returncode == 0, text_of(done)
    line = json.loads(done.stdout)["suggestion"].split()
    assert line[0] == "--method" and f"scores={tmp_path / 'd.pt'}" in line[-1]
    trained = run("train", *line, "--model", "strided_cnn", "--epochs", "1", "--json")
    assert trained.returncode == 0, text_of(trained)
    assert json.loads(trained.stdout)["trained"] == 39 * 32  # 1,293 are kept, and an epoch has full batches only


# ---- bad input


def test_a_run_without_dynamics_is_told_what_to_do(folder):
    done = run("audit", folder / "without")
    assert done.returncode != 0 and "--record dynamics" in text_of(done)


def test_the_report_has_a_section_on_the_data(folder, tmp_path):
    runs = shutil.copytree(folder, tmp_path / "runs")
    made = write_report([runs], tmp_path / "report.html")
    section = next(section for section in made.sections if section.title == "Your data")
    found = sb.audit(runs / "with")
    rows = found.by_class()
    assert [row[3] for row in section.parts[0].cells] == [f"{row['confidence']:.2f}" for row in rows] and len(
        rows
    ) == 10
    (runs / "with" / "dynamics.pt").write_bytes(b"broken")
    again = write_report([runs], tmp_path / "again.html")
    assert all(section.title != "Your data" for section in again.sections)
    assert any("dynamics" in what for what, _ in again.left_out)


def test_comparisons_record_dynamics(tmp_path):
    options = ["--quick", "--model", "strided_cnn", "--epochs", "2", "--method", "ledger", "--out", tmp_path / "out"]
    wrong = run("compare", *options, "--record", "everything")
    assert wrong.returncode == 2 and "--record" in text_of(wrong)
    done = run("compare", *options, "--record", "dynamics")
    assert done.returncode == 0, text_of(done)
    log = next(path for path in (tmp_path / "out").rglob("dynamics.pt") if path.parent.parent.name.startswith("ledger"))
    assert sb.audit(log.parent).num_epochs == 2
    assert "Your data" in (tmp_path / "out" / "report.html").read_text()


def test_what_is_no_run_is_refused(tmp_path):
    done = run("audit", tmp_path)
    assert done.returncode != 0 and "recorded no dynamics" in text_of(done)
