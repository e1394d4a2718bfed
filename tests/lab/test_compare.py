"""Comparisons and sweeps as a user runs them, on digits."""

import json
import re
import signal
import time

import pytest
import torch

from selective_backprop.testing import same
from selective_backprop_lab.runs.methods import MethodSpec, make_method
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.study.comparison import settings_for
from selective_backprop_lab.study.curves import Curve
from selective_backprop_lab.study.frontier import Budget, compute_multiplier
from selective_backprop_lab.study.standing import lowest, random_frontier
from tests.lab.command_line import records, run, start, text_of, without_seconds

METHODS = ("--method", "sb@0.25", "--method", "mine=ledger:loss_share=0.8,lr=0.05")
PLAIN = ("traditional, 2 epochs", "traditional, 4 epochs")
RANDOM = "repeated_random, 2 epochs of compute"


def row_of(folder, label, title):
    part = (folder / "tables.md").read_text().split(title)[1]
    lines = part.splitlines()
    return next([cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith(f"| {label} |"))


def folder_of(out, label, seed=0):
    return out / label.replace(", ", ",_").replace(" ", "_") / f"seed-{seed}"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    command = ("compare", *METHODS, "--model", "strided_cnn", "--epochs", "2,4", "--seeds", 2, "--out", out)
    result = run(*command)
    assert result.returncode == 0, text_of(result)
    return out, command, result


def test_every_method_and_baseline_runs_at_every_length_with_every_seed(compared):
    out, _, result = compared
    for label in (*PLAIN, RANDOM, "sb, 2 epochs", "sb, 4 epochs", "mine, 2 epochs", "mine, 4 epochs"):
        for seed in range(2):
            config = json.loads((folder_of(out, label, seed) / "config.json").read_text())
            assert config["seed"] == seed and config["label"] == label
    mine = json.loads((folder_of(out, "mine, 4 epochs") / "config.json").read_text())
    assert (mine["recipe"]["lr"], mine["recipe"]["epochs"], mine["options"]) == (0.05, 4, {"loss_share": 0.8})
    assert re.search(r"22 runs, \d\d epochs are left to do", text_of(result))


def test_matched_random_subsets_have_the_sizes_of_the_methods(compared):
    for label in ("sb, 2 epochs", "mine, 4 epochs"):
        for seed in range(2):
            own, matched = (records(folder_of(compared[0], f"{start}{label}", seed)) for start in ("", "random as "))
            assert [row["trained"] for row in matched] == [row["trained"] for row in own]
            assert all(row["scored"] == 0 for row in matched)


def test_every_run_decays_fully_and_baselines_have_their_compute(compared):
    out, _, _ = compared
    for label, epochs in ((PLAIN[0], 2), (PLAIN[1], 4), (RANDOM, 2)):
        rows = records(folder_of(out, label))
        assert sum(row["compute"] for row in rows) == pytest.approx(epochs, abs=0.1)
        assert rows[-1]["lr"] == pytest.approx(0, abs=1e-3) and rows[0]["lr"] > 0.04


def test_the_tables_are_what_the_records_say(compared):
    out, _, result = compared

    def arm(label):
        curves = [Curve.of(records(folder_of(out, label, seed))) for seed in (0, 1)]
        return Budget(tuple(c.errors[-1] for c in curves), tuple(c.compute[-1] for c in curves))

    longest, plain = arm("mine, 4 epochs"), [arm(label) for label in PLAIN]
    matched = [arm(f"random as mine, {epochs} epochs") for epochs in (2, 4)]
    random = random_frontier([arm(RANDOM)], plain)
    error = 1.02 * min(budget.error for budget in plain)
    heading = next(line for line in (out / "tables.md").read_text().splitlines() if " | M at " in line)
    column = heading.strip("| ").split(" | ").index(f"M at {error:.2%}")
    mine = [arm(f"mine, {epochs} epochs") for epochs in (2, 4)]
    row = row_of(out, "mine", "Methods")
    expected = lowest(*(compute_multiplier(baseline, mine, error) for baseline in (plain, random, matched)))
    assert row[1].startswith(f"{100 * longest.error:.2f}% ±") and row[2] == f"{longest.cost:.2f}"
    assert row[column] == (expected.short() if min(budget.error for budget in mine) <= error else "not reached")
    assert row_of(out, "traditional", "Methods")[3] == "baseline"
    assert row_of(out, "mine, 4 epochs", "Every length")[:3] == ["mine, 4 epochs", *row[1:3]]
    assert result.stdout.splitlines()[-1] == f"report: {out / 'report.html'}"
    verdicts = r" wins: |subsets win: |No method beats both|Plain training is not beaten"
    assert re.search(verdicts, text_of(result))
    assert "2 seeds only: differences may be chance." in text_of(result)


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
    assert first.stdout == again.stdout
    assert "22 runs, 0 epochs are left to do" in text_of(again)


def test_a_killed_comparison_goes_on_exactly(tmp_path):
    """Also a quick one, of three methods at one length with one seed."""
    command = ("compare", "--quick", "--method", "sb@0.25", "--model", "strided_cnn", "--epochs", 4, "--out")
    assert run(*command, tmp_path / "undisturbed").returncode == 0
    with start(*command, tmp_path / "killed") as process:
        while not (tmp_path / "killed/sb/seed-0/records.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert len(records(tmp_path / "killed/sb/seed-0")) < 4
    result = run(*command, tmp_path / "killed")
    assert result.returncode == 0, text_of(result)
    folders = [tmp_path / name / "sb" / "seed-0" for name in ("killed", "undisturbed")]
    assert without_seconds(folders[0]) == without_seconds(folders[1])
    assert same(*(torch.load(folder / "checkpoint.pt", weights_only=True)["model"] for folder in folders))


@pytest.mark.parametrize("name", ["sb", "stale", "predicted", "ledger_percentile"])
def test_beta_stands_for_a_selectivity(name):
    settings = settings_for(MethodSpec.parse(f"{name}:beta=3"), find_recipe("digits"))
    assert settings.selectivity == 0.25, "reports tell it"
    method = make_method(settings.method, settings.selectivity, settings.options)
    assert method.policy.beta == 3 and method.policy.selectivity == 0.25


def test_sweep_varies_what_a_method_has(tmp_path):
    methods = ("--method", "traditional", "--method", "sb", "--method", "stale", "--method", "ledger")
    vary = ("--vary", "selectivity=0.3,0.6", "--vary", "every=2,3", "--vary", "label_noise=0,0.1")
    result = run("sweep", *methods, *vary, "--model", "tests.torture.network:small", "--epochs", 2, "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert len(folders) == 2 * (1 + 2 + 4 + 1)
    stale = records(tmp_path / "stale_selectivity=0.3_every=3_label_noise=0.1/seed-0")
    assert [record["scored"] for record in stale] == [44 * 32, 0]
    config = json.loads((tmp_path / "stale_selectivity=0.3_every=3_label_noise=0.1/seed-0/config.json").read_text())
    assert (config["selectivity"], config["options"], config["label_noise"]) == (0.3, {"every": 3}, 0.1)
    rows = (tmp_path / "tables.md").read_text().partition("Final errors")[2].strip().splitlines()[2:]
    assert len(rows) == len(folders)
    report = (tmp_path / "report.html").read_text()
    assert "Settings that no other beats" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--epochs", "2,x"), "'2,x'"),
        (("compare", "--method", "a=sb", "--method", "a=ledger"), "once"),
        (("compare", "--method", "..=sb", "--epochs", "1"), "'..'"),
        (("compare", "--method", "sb@0.5:beta=2"), "beta=2"),
        (("compare", "--method", "traditional@0.5"), "no selectivity"),
        (("compare", "--method", "stale:evry=2"), "did you mean every?"),
        (("compare", "--method", "ledger:loss_share=2"), "loss_share"),
        (("sweep", "--vary", "selectivity"), "name=value"),
        (("sweep", "--vary", "schedule=cosin"), "did you mean cosine?"),
        (("train", "--validation", "1"), "validation"),
    ],
)
def test_bad_input_is_answered_with_what_would_be_right(arguments, message, tmp_path):
    out = tmp_path / "out"
    result = run(*arguments, "--out", out)
    assert result.returncode == 2, text_of(result)
    assert message in text_of(result)
    assert "Traceback" not in text_of(result)
    assert not out.exists(), "nothing is made before the input is known to be right"
