"""The command audit: with recorded dynamics, without them, and with wrong input."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

import selective_backprop as sb
from selective_backprop.dynamics import Dynamics, near_duplicates
from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.data.sources import read_sources
from selective_backprop.lab.report import data_of, write_report
from selective_backprop.lab.runs.ledger_log import LedgerLog
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.records import RunFolder, read_records
from selective_backprop.lab.runs.settings import command_options, settings_of
from selective_backprop.lab.runs.training import Settings, train
from selective_backprop.lab.study import redundancy
from tests.helpers import wordnet_texts
from tests.lab.command_line import run, run_on_ranks, text_of


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
    assert found["examples"] == 1437 and len(found["classes"]) == 10
    with (tmp_path / "a.csv").open() as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == list(range(1437))
    assert len(sb.pruning.load_scores(tmp_path / "d.pt")) == 1437
    again = run("audit", folder / "with", "--out", tmp_path / "a.csv")
    assert again.returncode != 0 and "is there already" in text_of(again)


def sources_file(file, num_examples, split=1000):
    lines = [f"{id},{'first' if id < split else 'rest'}" for id in reversed(range(num_examples))]
    file.write_text("\n".join(["id,camera", *lines]) + "\n")
    return file


def test_duplicates_sources_and_redundancy_go_into_the_report(folder, tmp_path):
    runs = shutil.copytree(folder, tmp_path / "runs")
    run_folder, scores = runs / "with", tmp_path / "d.pt"
    options = ["--duplicates", "--sources", sources_file(tmp_path / "s.csv", 1437), "--redundancy", "0.5,0.8"]
    done = run("audit", run_folder, *options, "--seeds", "2", "--diet", scores, "--json")
    assert done.returncode == 0, text_of(done)
    found = json.loads(done.stdout)
    assert [(row["group"], row["examples"]) for row in found["sources"]] == [("first", 1000), ("rest", 437)]
    expected = sb.audit(run_folder, features=sb.dynamics.Duplicates.load(run_folder / "duplicates.npz"))
    assert found["duplicates"] == (expected.duplicate >= 0).sum()
    assert found["redundant"] == pytest.approx((expected.redundant == 1).mean())
    points = found["curve"]["points"]
    assert [(p["ranking"], p["share"]) for p in points] == [
        ("audit", 1.0),
        ("audit", 0.5),
        ("random", 0.5),
        ("audit", 0.8),
        ("random", 0.8),
    ]
    assert points[1]["examples"] == pytest.approx(0.5 * 1437, abs=2)
    assert points[0]["difference"]["value"] == 0
    # The networks are no runs of the experiment, and are not trained again.
    again = run("audit", run_folder, "--redundancy", "0.8", "--seeds", "2", "--json")
    assert json.loads(again.stdout)["curve"]["points"][1]["error"] == points[3]["error"]
    made = write_report([runs], tmp_path / "report.html", load=data_of())
    section = next(section for section in made.sections if section.title == "Your data")
    titles = [getattr(part, "title", getattr(part, "words", "")) for part in section.parts]
    for title in (
        "Your data by source",
        "groups of near-duplicates",
        "**Estimate**",
        "Measured: how much",
        "**Measured:**",
    ):
        assert any(title in found for found in titles), (title, titles)
    curve = next(part for part in section.parts if getattr(part, "id", "").startswith("redundancy-"))
    assert {row["kept"] for row in curve.rows} == {0.8, 1.0} and all(
        row["low"] <= row["error"] <= row["high"] for row in curve.rows
    )
    assert len({run.path for comparison in made.comparisons for run in comparison.runs}) == 2
    for name in ("duplicates.npz", "redundancy.json", "sources.csv"):
        kept = (run_folder / name).read_bytes()
        (run_folder / name).write_bytes(b"broken")
        broken = write_report([runs], tmp_path / "broken.html")
        assert len(broken.left_out) == 1 and any(section.title == "Your data" for section in broken.sections)
        (run_folder / name).write_bytes(kept)


def test_the_suggested_command_trains_on_what_is_kept(folder, tmp_path):
    dynamics = Dynamics.load(folder / "with" / "dynamics.npz")
    (tmp_path / "run").mkdir()
    for name in ("config.json", "data.json"):
        (tmp_path / "run" / name).write_bytes((folder / "with" / name).read_bytes())
    ids, labels = torch.arange(1437), torch.from_numpy(dynamics.labels.astype(np.float32))
    wrong = ids % 10 == 0
    values = torch.stack([torch.where(wrong, -5.0, 5.0), torch.where(wrong, 0.01, 0.99), (labels + 1) % 10, labels], 1)
    made = Dynamics(1437)
    for epoch in range(3):
        made.record(ids, torch.where(wrong, 5.0, 0.01), epoch, values)
    made.save(tmp_path / "run" / "dynamics.npz")
    done = run("audit", tmp_path / "run", "--diet", tmp_path / "d.pt", "--json")
    assert done.returncode == 0, text_of(done)
    line = json.loads(done.stdout)["suggestion"].split()
    assert line[:2] == ["selective-backprop", "train"] and f"scores={tmp_path / 'd.pt'}" in line[-1]
    trained = run(*line[1:], "--epochs", "1", "--json")
    assert trained.returncode == 0, text_of(trained)
    assert json.loads(trained.stdout)["trained"] == 39 * 32  # 1,293 are kept, and an epoch has full batches only


# ---- the curve


def test_the_curve_agrees_with_its_definition(tmp_path):
    """A tiny curve: held-out errors, paired differences, the same number of steps, and no training on a second call."""
    digits = load_images("digits")
    data = dataclasses.replace(digits, train_images=digits.train_images[:256], train_labels=digits.train_labels[:256])
    recipe = find_recipe("digits").with_(epochs=2, model="strided_cnn", batch_size=32)
    settings = Settings(recipe=recipe, method="ledger_backprop", selectivity=0.5, label_noise=0.1, seed=3)
    epochs: dict[str, int] = {}

    def observers(name, seed):
        return [lambda training, record: epochs.update({f"{name}/{seed}": training.loader.stats.trained})]

    def measure():
        scores = torch.arange(256).float()
        return redundancy.measure_redundancy(
            settings, data, scores, tmp_path, shares=[0.5], highest=0.1, seeds=2, tolerance=1.0, observers=observers
        )

    curve = measure()
    assert set(epochs) == {f"{name}/{seed}" for name in ("everything", "audit-0.5", "random-0.5") for seed in (0, 1)}
    assert set(epochs.values()) == {512}  # half the data, twice as often
    wrong = {}
    for name in ("everything", "audit-0.5"):
        files = [json.loads((tmp_path / name / f"seed-{seed}" / "held-out.json").read_text()) for seed in (0, 1)]
        wrong[name] = [len(file["wrong"]) / 360 for file in files]
        last = [read_records(tmp_path / name / f"seed-{seed}")[-1]["test_error"] for seed in (0, 1)]
        assert wrong[name] == pytest.approx(last)
    everything, audited, random = curve.points
    assert everything.error.value == pytest.approx(np.mean(wrong["everything"]))
    assert audited.difference.value == pytest.approx(np.mean(wrong["audit-0.5"]) - np.mean(wrong["everything"]))
    assert audited.examples == 128 == random.examples
    # Of 256 scores the 26 highest go, and the lowest until half is left.
    keep = redundancy.keep_by_audit(torch.arange(256).float(), 0.5, 0.1)
    assert not keep[-26:].any() and not keep[:102].any() and int(keep.sum()) == 128
    assert curve.smallest("audit").share == 0.5 and "enough" in curve.verdict()
    strict = dataclasses.replace(curve, tolerance=-1.0)
    assert strict.smallest("audit") is None and "keep all examples" in strict.verdict()
    epochs.clear()
    assert measure().points[1].error == audited.error and not epochs
    curve.save(tmp_path)
    assert redundancy.Redundancy.load(tmp_path).as_json() == curve.as_json()


def test_intervals_hold_both_kinds_of_uncertainty():
    """Limits: equal seeds leave the part of held-out examples, equal examples that of seeds. Then the coverage."""
    one = redundancy.interval(np.tile(np.arange(100) % 2, (3, 1)).astype(float))
    assert one.high - one.value == pytest.approx(1.645 * np.std(np.arange(100) % 2, ddof=1) / 10, rel=1e-3)
    two = redundancy.interval(np.tile([[0.1], [0.2], [0.3]], (1, 50)))
    assert two.high - two.value == pytest.approx(2.92 * 0.1 / np.sqrt(3), rel=1e-3)
    chance, covered = np.random.default_rng(0), 0
    for _ in range(400):
        chances = chance.beta(1, 9, size=(1, 300)) + chance.normal(size=(3, 1)) * 0.01
        found = redundancy.interval((chance.random((3, 300)) < chances).astype(float))
        covered += found.low <= 0.1 <= found.high
    assert 0.88 < covered / 400 < 0.99


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"shares": [0.5], "seeds": 1}, "at least 2 seeds"),
        ({"shares": [0.0]}, "between 0 and 1"),
        ({"shares": []}, "between 0 and 1"),
        ({"shares": [0.01]}, "fewer than a batch of 32"),
    ],
)
def test_impossible_curves_are_refused(tmp_path, more, said):
    settings = Settings(recipe=find_recipe("digits"), method="traditional", selectivity=1.0)
    with pytest.raises(ValueError, match=said):
        redundancy.measure_redundancy(settings, load_images("digits"), torch.zeros(1437), tmp_path, **more)
    assert not list(tmp_path.iterdir())


def test_settings_come_back_from_a_folder(folder):
    config = json.loads((folder / "with" / "config.json").read_text())
    settings = settings_of(config)
    assert settings.as_json() == config and command_options(settings) == ["--model", "strided_cnn", "--epochs", "2"]
    for broken in ({}, [], {"recipe": {}}, config | {"recipe": config["recipe"] | {"decay": 3}}):
        with pytest.raises(ValueError, match="is not that of a run"):
            settings_of(broken)


# ---- bad input


def test_sources_must_fit(tmp_path):
    assert read_sources(sources_file(tmp_path / "s.csv", 4, 2), 4) == ["first", "first", "rest", "rest"]
    for text, said in (
        ("a,b\n0,x\n", "two columns"),
        ("", "two columns"),
        ("id,s\n7,x\n", "line 2: id must be from 0 to 1"),
        ("id,s\n0,x\n0,y\n", "id 0 is there twice"),
        ("id,s\n1,x\n", "id 0 is missing"),
    ):
        (tmp_path / "wrong.csv").write_text(text)
        with pytest.raises(ValueError, match=said):
            read_sources(tmp_path / "wrong.csv", 2)


def test_other_data_are_refused(folder, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    for name in ("config.json", "dynamics.npz", "data.json"):
        (place / name).write_bytes((folder / "with" / name).read_bytes())
    gone = run("audit", place, "--duplicates")
    assert gone.returncode != 0 and "checkpoint.pt is gone" in text_of(gone)
    content = json.loads((place / "data.json").read_text())
    content["train"]["examples"] = 1000
    (place / "data.json").write_text(json.dumps(content))
    done = run("audit", place, "--duplicates")
    assert done.returncode != 0 and "other data (1000 train examples then, 1437 now)" in text_of(done)
    (place / "config.json").unlink()
    done = run("audit", place, "--redundancy", "0.5")
    assert done.returncode != 0 and "has no config.json" in text_of(done)
    near_duplicates(torch.randn(50, 3)).save(place / "duplicates.npz")
    done = run("audit", place)
    assert done.returncode != 0 and "they are of other data" in text_of(done)


def test_wrong_shares_are_refused(folder):
    for text, said in (("half", "such as 0.25,0.5,0.75, got 'half'"), ("1.5", "between 0 and 1")):
        done = run("audit", folder / "with", "--redundancy", text)
        assert done.returncode != 0 and said in text_of(done)


def test_a_log_without_classes_is_audited_by_its_losses(tmp_path):
    """Regression, sequences and data without labels: a log of losses alone, given as a file."""
    dynamics = Dynamics(40)
    for epoch in range(2):
        dynamics.record(torch.arange(40), torch.linspace(0, 1, 40), epoch)
    dynamics.save(tmp_path / "dynamics.npz")
    sources = sources_file(tmp_path / "s.csv", 40, 10)
    options = ["--out", tmp_path / "a.csv", "--diet", tmp_path / "d.pt", "--sources", sources]
    done = run("audit", tmp_path, *options)
    said = text_of(done)
    assert done.returncode == 0 and "only statistics of losses" in said and "highest losses" in said, said
    assert "by source" in said and len(sb.pruning.load_scores(tmp_path / "d.pt")) == 40


def test_a_run_without_dynamics_is_audited_by_its_losses(folder):
    done = run("audit", folder / "without")
    assert done.returncode == 0 and "highest losses" in text_of(done) and "only statistics of losses" in text_of(done)


def test_the_report_has_a_section_on_the_data(folder, tmp_path):
    runs = shutil.copytree(folder, tmp_path / "runs")
    made = write_report([runs], tmp_path / "report.html")
    section = next(section for section in made.sections if section.title == "Your data")
    found = sb.audit(runs / "with")
    points = section.parts[0].rows
    assert len(points) == (found.times_trained > 0).sum()
    assert points[7]["confidence"] == pytest.approx(found.confidence[7], rel=1e-5)
    assert len(section.parts[1].cells) == 10
    (runs / "with" / "dynamics.npz").write_bytes(b"broken")
    again = write_report([runs], tmp_path / "again.html")
    assert all(section.title != "Your data" for section in again.sections)
    assert any("dynamics" in what for what, _ in again.left_out)


def test_texts_are_shown_as_text(tmp_path):
    data_dir, out = wordnet_texts(tmp_path / "data"), tmp_path / "runs" / "a"
    recipe = find_recipe("digits").with_(dataset="wordnet", model="byte_transformer", epochs=1)
    settings = Settings(recipe=recipe, method="traditional", selectivity=1.0, record="dynamics")
    data = load_images("wordnet", data_dir=data_dir)
    with RunFolder(out, settings.as_json(), data.fingerprint) as place:
        train(settings, data, folder=place)
    ids, labels = torch.arange(len(data.train_labels)), data.train_labels.float()
    margins, chances = torch.full((len(ids),), 6.0), torch.full((len(ids),), 0.99)
    margins[7], chances[7] = -6.0, 0.01  # a made-up log in which one label is plainly wrong
    made = Dynamics(len(ids))
    for epoch in range(3):
        made.record(ids, -chances.log(), epoch, torch.stack([margins, chances, 12 - labels, labels], 1))
    made.save(out / "dynamics.npz")
    near_duplicates(torch.randn(len(ids), 8, generator=torch.Generator().manual_seed(0)), threshold=0.9).save(
        out / "duplicates.npz"
    )
    report = write_report([out], tmp_path / "report.html", load=data_of(data_dir))
    section = next(section for section in report.sections if section.title == "Your data")
    table = next(part for part in section.parts if getattr(part, "id", "").startswith("wrong-"))
    text = bytes(data.train_images[7].flatten().tolist()).rstrip(b"\0").decode()
    topics = [data.classes[label] for label in (int(labels[7]), 12 - int(labels[7]))]
    assert table.heading[1] == "text" and table.cells[0][:4] == ["7", f"“{text}”", *topics]
    page = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page.split("<main", 1)[-1].split("<script", 1)[0]
    private = write_report([out], tmp_path / "private.html", load=data_of(data_dir), images=False)
    section = next(section for section in private.sections if section.title == "Your data")
    assert "text" not in next(part for part in section.parts if getattr(part, "id", "").startswith("wrong-")).heading


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_comparisons_and_sweeps_record_dynamics(tmp_path, command):
    options = [
        "--model",
        "strided_cnn",
        "--epochs",
        "2",
        "--method",
        "ledger",
        "--seeds",
        "1",
        "--out",
        tmp_path / "out",
    ]
    options += ["--no-baselines"] if command == "compare" else ["--vary", "loss_share=0.9"]
    wrong = run(command, *options, "--record", "everything")
    assert wrong.returncode != 0 and "--record takes dynamics, got 'everything'" in text_of(wrong)
    done = run(command, *options, "--record", "dynamics")
    assert done.returncode == 0, text_of(done)
    (log,) = (tmp_path / "out").rglob("dynamics.npz")
    assert sb.audit(log.parent).num_epochs == 2
    assert "Your data" in (tmp_path / "out" / "report.html").read_text()


def test_what_is_no_run_is_refused(tmp_path):
    done = run("audit", tmp_path)
    assert done.returncode != 0 and "recorded no dynamics" in text_of(done)


def test_two_ranks_record_what_each_trains_on(tmp_path):
    done = run_on_ranks("train", "--method", "traditional", "--epochs", "2", "--record", "dynamics", "--out", tmp_path)
    assert done.returncode == 0, text_of(done)
    found = sb.audit(tmp_path)
    labels = load_images("digits").train_labels.numpy()
    assert found.times_trained.sum() == sum(record["trained"] for record in read_records(tmp_path))
    assert (found.times_trained == 2).sum() >= 1437 - 2 * 29  # what fills no batch of 32 is left out
    assert (found.label == labels)[found.times_trained > 0].all()
