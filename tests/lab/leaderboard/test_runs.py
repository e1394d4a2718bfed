"""The commands of the leaderboard, on digits with a network that trains in no time."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import selective_backprop as sb
from selective_backprop_lab.cli.app import app
from selective_backprop_lab.leaderboard import workloads
from selective_backprop_lab.leaderboard.running import settings_of
from selective_backprop_lab.leaderboard.tuning import cells_of, stores
from selective_backprop_lab.runs.methods import make_method
from selective_backprop_lab.runs.training import Training, load_data
from selective_backprop_lab.study.comparison import AS
from tests.lab.leaderboard.made_up import fill

SMALL = dataclasses.replace(
    workloads.DIGITS, recipe=workloads.DIGITS.recipe.with_(model="tests.torture.network:small"), seeds=1
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(workloads, "DIGITS", SMALL)


def leaderboard(*words):
    result = CliRunner().invoke(app, ["leaderboard", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def run_digits(folder, *words):
    code, said = leaderboard("run", "digits", "--records", folder, "--allow-changes", *words)
    assert code == 0, said
    return said


def test_a_command_tunes_runs_and_shows(tmp_path):
    said = run_digits(tmp_path, "--arm", "traditional", "--arm", "repeated_random", "--arm", "mine=random@0.5:longer=2")
    assert said.count("runs left") > 10
    store, tried = stores(tmp_path, "digits")
    assert len(tried.outcomes) == 6 and all(cell.held_out and cell.length == 1 for cell in tried.outcomes)
    plain = [one for one in tried.outcomes.values() if one.cell.arm == "traditional"]
    best = min(plain, key=lambda one: one.error).cell.rate
    assert {cell.rate for cell in store.outcomes if cell.arm != "repeated_random"} == {best}
    assert {cell.arm for cell in store.outcomes} == {"traditional", "repeated_random", "mine", "random as mine"}
    for cell, outcome in store.outcomes.items():
        assert len(outcome.epochs) == cell.length * (1 if cell.arm == "traditional" else 2)
        assert outcome.compute == pytest.approx(cell.length, rel=0.15), "every arm costs about as much"
        assert len(outcome.reference) == 2 and min(outcome.reference) > 0
    for cell in (cell for cell in store.outcomes if cell.source is not None):
        own, source = store.outcomes[cell].epochs, store.outcomes[cell.source].epochs
        for taken, asked in zip(own, source, strict=True):
            assert taken["trained"] == pytest.approx(asked["trained"], abs=SMALL.recipe.batch_size)
    assert "runs left" not in run_digits(tmp_path, "--arm", "mine=random@0.5:longer=2")
    code, shown = leaderboard("show", tmp_path)
    assert code == 0 and "### Lossless" in shown and "| random as mine |" in shown


def test_a_stopped_run_goes_on_from_its_last_epoch(tmp_path, monkeypatch):
    whole_epoch, epochs, stops = Training.epoch, [], []

    def stopping(training):
        epochs.append(1)
        if stops and len(training.records) == 2:
            raise stops.pop()
        return whole_epoch(training)

    monkeypatch.setattr(Training, "epoch", stopping)
    run_digits(tmp_path / "whole", "--arm", "ledger")
    needed = len(epochs)
    stops.append(KeyboardInterrupt)
    code, said = leaderboard("run", "digits", "--records", tmp_path / "parts", "--allow-changes", "--arm", "ledger")
    assert code == 130 and "stopped" in said
    run_digits(tmp_path / "parts", "--arm", "ledger")
    assert len(epochs) == 2 * needed + 1, "the epoch that was stopped is the only one again"
    whole, parts = (stores(tmp_path / name, "digits")[0].outcomes for name in ("whole", "parts"))
    assert {cell: (one.error, one.epochs) for cell, one in whole.items()} == {
        cell: (one.error, one.epochs) for cell, one in parts.items()
    }
    assert not list((tmp_path / "parts").rglob("*.state"))


def test_a_run_that_diverges_is_recorded_as_wrong_everywhere(tmp_path):
    run_digits(tmp_path, "--arm", "mine=traditional:lr=1e30")
    store, _ = stores(tmp_path, "digits")
    assert {cell.arm for cell in store.outcomes} == {"mine", "random as mine"}
    assert {(one.error, one.compute) for one in store.outcomes.values() if one.cell.arm == "mine"} == {
        (1.0, length) for length in SMALL.lengths
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "cifar10-w18"), "did you mean cifar10-w16?"),
        (("run", "digits", "--device", "tpu"), "--device tpu cannot be used here"),
        (("run", "digits", "--arm", "legder"), "did you mean ledger?"),
        (("run", "digits", "--arm", "mine=sb:betta=1"), "did you mean beta?"),
        (("check", "nowhere"), "run leaderboard run first"),
    ],
)
def test_mistakes_are_told_before_any_run(words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = leaderboard(*words, *(("--allow-changes",) if words[0] == "run" else ()))
    assert code == 2 and told in said
    assert not list(tmp_path.iterdir())


def test_without_records_there_is_nothing_to_show():
    code, said = leaderboard("show", "nowhere")
    assert code == 0 and "nowhere" in said


def test_records_are_checked(tmp_path):
    store, tried = stores(tmp_path, "digits")
    fill(store, tried, {})
    code, said = leaderboard("check", tmp_path)
    assert code == 0 and "are in order" in said
    first, *others = store.file.read_text().splitlines()
    record = json.loads(first)
    record["made"]["commit"] += "+changes"
    record["cell"]["setting"] += ",lr=0.01"
    store.file.write_text("\n".join([json.dumps(record), *others]))
    code, said = leaderboard("check", tmp_path)
    assert code == 2
    for fault in ("not that of the protocol", "it is missing", "not as committed"):
        assert said.count(fault) == 1, fault


def test_a_checkout_with_changes_is_refused_unless_allowed(tmp_path):
    """In a repository of its own; a change of other files, such as records, counts for nothing."""
    source = Path(sb.__file__).parents[1]
    shutil.copytree(source, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "Begin"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)

    def refused():
        command = [sys.executable, "-m", "selective_backprop_lab", "leaderboard", "run", "digits", "--arm", "none"]
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 2
        return "changes that are not committed" in done.stderr

    (tmp_path / ".gitignore").write_text("__pycache__/\n*.jsonl\n")
    assert not refused()
    (tmp_path / "src" / "selective_backprop" / "new.py").write_text("")
    assert refused()


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_every_arm_of_every_workload_can_be_made(name):
    workload = workloads.find_workload(name)
    assert workload.lengths == tuple(sorted(workload.lengths))
    for cell in cells_of(workload, dict.fromkeys(workload.arms, 1.0), seed=0):
        if not cell.arm.startswith(AS):
            settings = settings_of(workload, cell)
            assert settings.epochs >= cell.length
            make_method(settings.method, settings.selectivity, settings.options)


def test_random_subsets_come_after_the_run_whose_sizes_they_have():
    cells = cells_of(SMALL, dict.fromkeys(SMALL.arms, 1.0), seed=0)
    assert len(cells) == len(set(cells)) == len(SMALL.lengths) * (2 + 2 * 2)
    for cell in cells:
        assert cell.source is None or cells.index(cell.source) < cells.index(cell)


def test_trials_are_not_trained_on_what_they_are_tested_on():
    cells = cells_of(SMALL, dict.fromkeys(SMALL.arms, 1.0), seed=0)
    trial, final = (
        load_data(settings_of(SMALL, dataclasses.replace(cells[0], held_out=held))) for held in (True, False)
    )
    trained, tested = ({one.numpy().tobytes() for one in part} for part in (trial.train_images, trial.test_images))
    assert not trained & tested and trained | tested == {one.numpy().tobytes() for one in final.train_images}
