"""Comparisons and sweeps as a user runs them, on digits."""

import json
import signal
import time

import pytest
import torch

from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.runs.choices import Choice
from selective_backprop.lab.runs.experiment import Entry, run_in_turns
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.training import train
from selective_backprop.lab.study.comparison import settings_for
from selective_backprop.lab.study.curves import Curve, speed_up
from selective_backprop.testing import global_random_states, same
from tests.lab.command_line import records, run, start, text_of, without_seconds

METHODS = ("--method", "traditional", "--method", "sb@0.25", "--method", "ledger:loss_share=0.8,lr=0.05")


def row_of(folder, label, axis):
    part = (folder / "tables.md").read_text().split(f"Speed-up in {axis}")[1]
    lines = part.splitlines()
    return next([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith(f"| {label} |"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    command = ("compare", *METHODS, "--epochs", 4, "--budget", "ledger", "--out", out)
    result = run(*command)
    assert result.returncode == 0, text_of(result)
    return out, command, result


def test_compare_runs_every_method_with_every_seed_in_turns(compared):
    out, _, result = compared
    lines = [line for line in result.stdout.splitlines() if "epoch" in line and "examples/s" in line]
    assert [line.split(":")[0] for line in lines[:6]] == ["traditional", "sb", "ledger"] * 2
    for label in ("traditional", "sb", "ledger", "repeated_random,_ledger_s_time"):
        for seed in range(2):
            assert json.loads((out / label / f"seed-{seed}" / "config.json").read_text())["seed"] == seed
    ledger = json.loads((out / "ledger/seed-0/config.json").read_text())
    assert (ledger["recipe"]["lr"], ledger["options"]) == (0.05, {"loss_share": 0.8})


def test_the_table_is_what_the_records_say(compared):
    out, _, result = compared
    curves = {
        name: [Curve.of(records(out / name / f"seed-{seed}")) for seed in (0, 1)] for name in ("traditional", "sb")
    }
    assert row_of(out, "traditional", "seconds")[3:] == ["1.00 (1.00-1.00)"] * 3
    row = row_of(out, "sb", "seconds")
    mean = sum(curve.errors[-1] for curve in curves["sb"]) / 2
    assert row[1].startswith(f"{100 * mean:.2f}% ±")
    assert row[2] == f"{sum(curve.seconds[-1] for curve in curves['sb']) / 2:.1f}"
    assert row[5] == str(speed_up(curves["traditional"], curves["sb"], 1.4, "seconds"))
    row = row_of(out, "sb", "compute")
    assert row[2] == f"{sum(curve.compute[-1] for curve in curves['sb']) / 2:.2f}"
    assert row[5] == str(speed_up(curves["traditional"], curves["sb"], 1.4, "compute"))
    assert "Error on the test set after the last epoch" in text_of(result)


def test_compare_ends_with_a_report(compared):
    out, _, result = compared
    assert result.stdout.splitlines()[-1] == f"report: {out / 'report.html'}"
    page = (out / "report.html").read_text()
    for words in ("Baselines within the same budget", "Pareto frontier", "traditional, ledger&#39;s compute"):
        assert words in page


@pytest.mark.parametrize("baseline", ["traditional", "repeated_random"])
def test_baselines_have_the_same_compute_and_decay_fully(compared, baseline):
    out, _, _ = compared
    for seed in range(2):
        spent = Curve.of(records(out / f"ledger/seed-{seed}")).compute[-1]
        run_of_baseline = records(out / f"{baseline},_ledger_s_compute/seed-{seed}")
        # Up to a training batch of 32 of the 1,437 examples.
        assert sum(record["compute"] for record in run_of_baseline) == pytest.approx(spent, abs=1.05 * 32 / 1437)
        assert run_of_baseline[-1]["lr"] == pytest.approx(0, abs=1e-3)
        assert run_of_baseline[0]["lr"] > 0.05


def test_the_time_budget_is_the_examples_that_traditional_trains_on_in_it(compared):
    out, _, _ = compared
    ledger, traditional = (Curve.of(records(out / f"{name}/seed-0")) for name in ("ledger", "traditional"))
    expected = ledger.seconds[-1] / (traditional.seconds[-1] / 4)
    config = json.loads((out / "traditional,_ledger_s_time/seed-0/config.json").read_text())
    assert config["length"] == pytest.approx(expected, abs=0.001)


def test_a_budget_by_compute_alone(tmp_path):
    command = ("compare", "--method", "traditional", "--method", "ledger", "--epochs", 2, "--seeds", 1)
    result = run(*command, "--budget", "ledger", "--budget-by", "compute", "--budget-times", 0.5, "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    labels = {path.name for path in tmp_path.iterdir() if path.is_dir()} - {"traditional", "ledger"}
    assert labels == {"traditional,_0.5x_ledger_s_compute", "repeated_random,_0.5x_ledger_s_compute"}
    shorter = json.loads((tmp_path / "traditional,_0.5x_ledger_s_compute/seed-0/config.json").read_text())
    spent = Curve.of(records(tmp_path / "ledger/seed-0")).compute[-1]
    assert shorter["length"] == pytest.approx(spent / 2, abs=0.001)


def test_running_it_again_does_nothing_but_the_table(compared):
    out, command, first = compared
    files = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in out.rglob("*.*")
        if path.suffix in (".jsonl", ".pt")
    }
    again = run(*command)
    assert again.returncode == 0
    assert files == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    assert first.stdout.split("Speed-up in")[1:] == again.stdout.split("Speed-up in")[1:]


def test_a_killed_comparison_goes_on_exactly(tmp_path):
    command = ("compare", *METHODS, "--epochs", 6, "--seeds", 1, "--out")
    assert run(*command, tmp_path / "undisturbed").returncode == 0
    with start(*command, tmp_path / "killed") as process:
        while not (tmp_path / "killed/sb/seed-0/checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(records(tmp_path / "killed/sb/seed-0")) < 6
    result = run(*command, tmp_path / "killed")
    assert result.returncode == 0, text_of(result)
    for label in ("traditional", "sb", "ledger"):
        folders = [tmp_path / name / label / "seed-0" for name in ("killed", "undisturbed")]
        assert without_seconds(folders[0]) == without_seconds(folders[1])
        assert same(*(torch.load(folder / "checkpoint.pt", weights_only=True)["model"] for folder in folders))


def test_ctrl_c_says_how_to_go_on(tmp_path):
    with start("compare", *METHODS, "--epochs", 500, "--out", tmp_path) as process:
        while not (tmp_path / "sb/seed-0/checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert "stopped; run the same command to go on" in " ".join(output.split())


def test_runs_that_take_turns_are_as_they_would_be_alone():
    recipe = find_recipe("digits").with_(epochs=2, model="tests.lab.networks:with_dropout")
    data, before = load_images("digits"), global_random_states()
    entries = [Entry(name, settings_for(Choice.parse(name), recipe, seed=3)) for name in ("sb", "traditional")]
    together = run_in_turns(entries, lambda settings: data)
    for entry in entries:
        alone = train(entry.settings, data)
        for one, other in zip(together[entry], alone, strict=True):
            assert {k: v for k, v in one.items() if k != "seconds"} == {
                k: v for k, v in other.items() if k != "seconds"
            }
    assert same(before, global_random_states())


def test_validation_is_of_the_training_data(tmp_path):
    out = tmp_path / "run"
    assert run("train", "--epochs", 1, "--validation", 0.25, "--out", out).returncode == 0
    assert records(out)[0]["offered"] == 1437 - round(0.25 * 1437)


def test_sweep_varies_what_a_method_has(tmp_path):
    methods = ("--method", "traditional", "--method", "sb", "--method", "stale", "--method", "ledger")
    vary = ("--vary", "selectivity=0.3,0.6", "--vary", "every=2,3", "--vary", "label_noise=0,0.1")
    result = run("sweep", *methods, *vary, "--epochs", 2, "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert len(folders) == 2 * (1 + 2 + 4 + 2)
    stale = records(tmp_path / "stale_selectivity=0.3_every=3_label_noise=0.1/seed-0")
    assert [record["scored"] for record in stale] == [1437, 0]
    config = json.loads((tmp_path / "stale_selectivity=0.3_every=3_label_noise=0.1/seed-0/config.json").read_text())
    assert (config["selectivity"], config["options"], config["label_noise"]) == (0.3, {"every": 3}, 0.1)
    ledger = json.loads((tmp_path / "ledger_selectivity=0.6_label_noise=0/seed-0/config.json").read_text())
    assert ledger["options"] == {"selectivity": 0.6}
    tables = (tmp_path / "tables.md").read_text()
    for heading in ("Final errors", "error against seconds", "error against compute, 10% wrong labels"):
        assert heading in tables
    shares = [int(line.split("|")[2].strip(" %")) for line in tables.split("against compute\n")[1].splitlines()[3:7]]
    assert sum(shares) == pytest.approx(100, abs=2)  # rounded to whole percents


def test_sweep_over_models_and_schedules(tmp_path):
    vary = ("--vary", "model=small_cnn,tests.lab.networks:with_dropout", "--vary", "schedule=linear,cifar10")
    result = run("sweep", "--method", "sb", *vary, "--epochs", 1, "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    recipes = [json.loads(path.read_text())["recipe"] for path in tmp_path.rglob("config.json")]
    assert {(recipe["model"], recipe["decay"]["kind"]) for recipe in recipes} == {
        (model, kind) for model in ("small_cnn", "tests.lab.networks:with_dropout") for kind in ("linear", "step")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--method", "sb"), "a comparison needs the method traditional"),
        (("compare", "--method", "traditional", "--method", "traditional"), "each method can be given once"),
        (("compare", "--method", "traditional", "--budget", "sb"), "--budget is one of the methods (traditional)"),
        (("compare", "--method", "traditional", "--method", "sb@high"), "after @ goes a selectivity"),
        (("compare", "--method", "traditional@0.5"), "traditional has no selectivity of its own, got 0.5"),
        (("compare", "--method", "stale:evry=2"), "does not take these options"),
        (("compare", "--method", "ledger:loss_share=2"), "loss_share must be in (0, 1], got 2"),
        (("compare", "--budget-times", "0"), "--budget-times must be positive"),
        (("compare", "--seeds", "0"), "Input should be greater than or equal to 1"),
        (("sweep", "--vary", "selectivity"), "--vary takes name=value"),
        (("sweep", "--vary", "every=2", "--vary", "every=3"), "each setting can be varied once, got every, every"),
        (("sweep", "--vary", "evry=2"), "none of the methods has 'evry'"),
        (("sweep", "--vary", "schedule=cosin"), "there is no recipe 'cosin'"),
        (("sweep", "--vary", "label_noise=2"), "label_noise must be in [0, 1), got 2"),
        (("train", "--validation", "1"), "validation must be in [0, 1), got 1.0"),
    ],
)
def test_bad_input_is_answered_with_what_would_be_right(arguments, message, tmp_path):
    out = tmp_path / "out"
    result = run(*arguments, "--out", out)
    assert result.returncode == 2, text_of(result)
    assert message in text_of(result)
    assert "Traceback" not in text_of(result)
    assert not out.exists(), "nothing is made before the input is known to be right"
