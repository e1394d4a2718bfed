"""The command line as a user runs it, on digits and small networks."""

import json
import signal
import time

import pytest
from typer.testing import CliRunner

from selective_backprop_lab.cli import app
from selective_backprop_lab.probes import read_confidence, read_gradients
from selective_backprop_lab.runs.ledger_log import read_ledger_log
from tests.lab.command_line import ENVIRONMENT, records, run, start, text_of

SHORT = ("--epochs", 3, "--model", "strided_cnn")
FULL = 44 * 32  # of 1,437 digits: an epoch has full batches only


def test_train_records_every_epoch(tmp_path):
    result = run("train", *SHORT, "--method", "stale:every=2", "--out", tmp_path / "run")
    assert result.returncode == 0, text_of(result)
    assert "epoch 3/3" in result.stderr
    assert "stale_selective_backprop on digits: test error" in text_of(result)
    written = records(tmp_path / "run")
    assert [record["epoch"] for record in written] == [0, 1, 2]
    assert [record["scored"] for record in written[:2]] == [FULL, 0]
    assert FULL - 31 <= written[2]["scored"] <= FULL, "but for those that wait for a batch of 32 when the epoch begins"
    assert all(0 <= record["test_error"] <= 1 and record["offered"] == FULL for record in written)
    assert set(written[0]["seconds"]) == {"loading", "selection", "forward", "backward", "other", "evaluation"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["method"], config["options"]) == ("stale_selective_backprop", {"every": 2})
    assert config["recipe"]["epochs"] == 3


def test_a_proxy_by_name(tmp_path):
    proxy = ("--method", "proxy@0.5:proxy=strided_cnn_tiny,train_every=2")
    result = run("train", "--epochs", 2, "--model", "strided_cnn", *proxy, "--out", tmp_path / "proxy")
    assert result.returncode == 0, text_of(result)
    for record in records(tmp_path / "proxy"):
        assert FULL - 31 <= record["scored"] <= FULL and abs(record["trained"] - FULL / 2) <= 32


def test_traditional_learns_digits(tmp_path):
    result = run("train", "--method", "traditional", "--epochs", 5, "--out", tmp_path / "run")
    assert result.returncode == 0, text_of(result)
    last = records(tmp_path / "run")[-1]
    assert last["test_error"] < 0.1
    assert last["lr"] == pytest.approx(0, abs=1e-9)


def test_ctrl_c_says_how_to_go_on(tmp_path):
    with start("train", "--epochs", 500, "--out", tmp_path / "run") as process:
        while not (tmp_path / "run" / "checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert "stopped; to continue, add --resume to the command" in errors


def test_an_existing_run_is_not_overwritten(tmp_path):
    assert run("train", *SHORT, "--out", tmp_path).returncode == 0
    before = (tmp_path / "records.jsonl").read_text()
    again = run("train", *SHORT, "--out", tmp_path)
    assert again.returncode == 2
    assert "already holds a run: add --resume to continue it" in text_of(again)
    other = run("train", *SHORT, "--seed", 1, "--out", tmp_path, "--resume")
    assert other.returncode == 2
    assert "holds a run with other settings (seed was 0, is 1 now)" in text_of(other)
    assert (tmp_path / "records.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "cifar"), "did you mean cifar10"),
        (("--method", "ledgr"), "did you mean ledger"),
        (("--model", "resnet21"), "resnet20"),
        (("--dataset", "mnits"), "mnist"),
        (("--method", "stale:every"), "name=value"),
        (("--resume",), "--out"),
        (("--probe", "gradient"), "did you mean gradients"),
    ],
)
def test_bad_input_is_answered_with_what_would_be_right(arguments, message):
    result = run("train", *arguments)
    assert result.returncode == 2, text_of(result)
    assert message in text_of(result)
    assert "Traceback" not in text_of(result)


def test_what_is_asked_for_is_written_beside_the_run(tmp_path):
    result = run("train", *SHORT, "--probe", "gradients,confidence", "--out", tmp_path)
    assert result.returncode == 0, text_of(result)
    history = read_ledger_log(tmp_path)
    assert history.loss.shape == history.probability.shape == history.selected.shape == (3, 1437)
    # Up to a batch of the last epoch's selected examples goes on waiting where BatchNorm could not train on it alone.
    trained = sum(record["trained"] for record in records(tmp_path))
    assert 0 <= int(history.selected.sum()) - trained <= 1
    assert read_gradients(tmp_path).epochs == [0, 1, 2]
    assert read_confidence(tmp_path).confidence.shape == (3, 360)


def test_advise_prints_costs_a_table_and_a_verdict():
    result = run("advise", "--seconds", 0.5)
    assert result.returncode == 0, text_of(result)
    for part in ("Per example: loading", "s per epoch", "sb@0.33"):
        assert part in text_of(result)
    assert "Try ledger first: " in text_of(result) or "Nothing pays here" in text_of(result)


def test_list_and_help():
    listed = text_of(run("list"))
    for name in ("digits", "cifar10", "wrn_28_10", "ledger_backprop (ledger)", "composer", "svhn_small"):
        assert name in listed
    commands = (
        ("train",),
        ("compare",),
        ("sweep",),
        ("advise",),
        ("diet", "score"),
        ("diet", "prune"),
        ("demo",),
        ("list",),
        ("report",),
        ("leaderboard", "run"),
    )
    for words in commands:
        said = CliRunner().invoke(app, [*words, "--help"]).output
        assert "Usage:" in said
        assert f"selective-backprop {' '.join(words)}" in said, "an example to copy"
    overview = text_of(run("--help"))
    assert all(f" {words[0]} " in overview for words in commands)


def test_torchrun_is_refused():
    done = run("train", env=ENVIRONMENT | {"WORLD_SIZE": "2", "RANK": "0"})
    assert done.returncode == 1 and "start it without torchrun" in done.stderr
