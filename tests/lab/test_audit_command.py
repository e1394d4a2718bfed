"""The command audit: with recorded dynamics, without them, and with wrong input."""

import csv
import json

import pytest

import selective_backprop as sb
from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.report import write_report
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.records import RunFolder, read_records
from selective_backprop.lab.runs.training import Settings, train
from tests.lab.command_line import run, run_on_ranks, text_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two epochs with dynamics, and one without."""
    out, data = tmp_path_factory.mktemp("runs"), load_images("digits")
    for name, record in (("with", "dynamics"), ("without", None)):
        recipe = find_recipe("digits").with_(epochs=2)
        settings = Settings(recipe=recipe, method="ledger_backprop", selectivity=0.5, record=record)
        with RunFolder(out / name, settings.as_json(), data.fingerprint) as place:
            train(settings, data, folder=place, observers=[LedgerLog(out / name)])
    return out


def test_a_recorded_run_is_audited(folder, tmp_path):
    done = run("audit", folder / "with", "--out", tmp_path / "a.csv", "--diet", tmp_path / "d.pt", "--json")
    assert done.returncode == 0, text_of(done)
    found = json.loads(done.stdout)
    assert found["examples"] == 1437 and len(found["classes"]) == 10
    with (tmp_path / "a.csv").open() as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == list(range(1437))
    assert len(sb.pruning.load_scores(tmp_path / "d.pt")) == 1437
    again = run("audit", folder / "with", "--out", tmp_path / "a.csv")
    assert again.returncode != 0 and "is there already" in text_of(again)


def test_a_run_without_dynamics_is_audited_by_its_losses(folder):
    done = run("audit", folder / "without")
    assert done.returncode == 0 and "highest losses" in text_of(done) and "only statistics of losses" in text_of(done)


def test_the_report_has_a_section_on_the_data(folder, tmp_path):
    made = write_report([folder], tmp_path / "report.html")
    section = next(section for section in made.sections if section.title == "Your data")
    found = sb.audit(folder / "with")
    points = section.parts[0].rows
    assert len(points) == 1437 and points[7]["confidence"] == pytest.approx(found.confidence[7], rel=1e-5)
    assert len(section.parts[1].cells) == 10
    (folder / "with" / "dynamics.npz").write_bytes(b"broken")
    again = write_report([folder], tmp_path / "again.html")
    assert all(section.title != "Your data" for section in again.sections)
    assert any("dynamics" in what for what, _ in again.left_out)


def test_what_is_no_run_is_refused(tmp_path):
    done = run("audit", tmp_path)
    assert done.returncode != 0 and "recorded no dynamics" in text_of(done)


def test_two_ranks_record_what_each_trains_on(tmp_path):
    done = run_on_ranks("train", "--method", "traditional", "--epochs", "2", "--record", "dynamics", "--out", tmp_path)
    assert done.returncode == 0, text_of(done)
    found = sb.audit(tmp_path)
    labels = load_images("digits").train_labels.numpy()
    assert found.times_trained.sum() == sum(record["trained"] for record in read_records(tmp_path))
    assert (found.times_trained == 2).sum() >= 1435  # an odd number of examples is not divided evenly
    assert (found.label == labels).all()
