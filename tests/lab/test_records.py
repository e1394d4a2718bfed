import json
import subprocess
import sys

import pytest
import torch

from selective_backprop.lab.choices import METHODS, make_method
from selective_backprop.lab.records import RunFolder

SETTINGS = {"method": "traditional", "seed": 0}


def test_a_folder_comes_back(tmp_path):
    records = [{"epoch": 0, "error": 0.5}, {"epoch": 1, "error": 0.25}]
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.checkpoint() is None
        assert folder.records() == []
        folder.save({"weights": torch.arange(3.0), "epoch": 1}, records[:1])
        folder.save({"weights": torch.arange(4.0), "epoch": 2}, records)
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.checkpoint()["weights"].tolist() == [0, 1, 2, 3]
        assert folder.records() == records
    assert not list((tmp_path / "run").glob("*.part"))


def test_the_environment_is_written_once(tmp_path):
    RunFolder(tmp_path, SETTINGS).close()
    written = json.loads((tmp_path / "environment.json").read_text())
    assert written["torch"] == torch.__version__
    (tmp_path / "environment.json").write_text('"kept"')
    RunFolder(tmp_path, SETTINGS).close()
    assert json.loads((tmp_path / "environment.json").read_text()) == "kept"


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path):
    RunFolder(tmp_path, SETTINGS).close()
    with pytest.raises(ValueError, match=r"holds a run with other settings \(epochs, seed\): choose another folder"):
        RunFolder(tmp_path, {"method": "traditional", "seed": 1, "epochs": 3})
    assert json.loads((tmp_path / "config.json").read_text()) == SETTINGS
    RunFolder(tmp_path, SETTINGS).close()


def test_two_processes_on_one_folder(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS)
    code = (
        "import pathlib, sys; from selective_backprop.lab.records import RunFolder\n"
        f"RunFolder(pathlib.Path(sys.argv[1]), {SETTINGS!r}).close()"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode != 0
    assert "another process is working on" in result.stderr
    folder.close()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0


def test_a_damaged_checkpoint_is_said_to_be_damaged(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as folder:
        folder.save({"weights": torch.zeros(100)}, [])
    content = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"checkpoint.pt is damaged \(.*\): move it away to start the run again"):
        folder.checkpoint()


def test_a_checkpoint_executes_no_code(tmp_path):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"weights": Malicious()}, tmp_path / "checkpoint.pt")
    with RunFolder(tmp_path, SETTINGS) as folder, pytest.raises(ValueError, match="is damaged"):
        folder.checkpoint()
    assert not (tmp_path / "executed").exists()


def test_damaged_settings(tmp_path):
    (tmp_path / "config.json").write_text('{"method":')
    with pytest.raises(ValueError, match=r"config.json is damaged \(.*\): move it away"):
        RunFolder(tmp_path, SETTINGS)


def test_every_named_method_can_be_made():
    for name in METHODS.keys() - {"diet", "recorded_backprop"}:  # which need files
        assert make_method(name, 0.25).name == name
    assert make_method("kath18", 0.25).policy.selectivity == 0.25
    assert make_method("composer_backprop", 0.25).policy.selectivity == 0.25
    assert make_method("ledger_backprop", 0.25, {"loss_share": 0.8}).policy.loss_share == 0.8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("selective_backpropp", {}, "there is no method 'selective_backpropp': did you mean selective_backprop"),
        ("xyz", {}, "there is no method 'xyz': there are traditional, selective_backprop"),
        ("top_k", {"every": 3}, "top_k does not take these options: .*every.* It has scoring"),
        ("top_k", {"proxy": "small_cn"}, "no model is called 'small_cn'; did you mean 'small_cnn'"),
        ("top_k", {"proxy": 3}, "proxy= takes the name of a model, got 3"),
        ("top_k", {"proxy": "small_cnn", "train_every": -1}, "train_every must be a whole number .* got -1"),
        ("top_k", {"train_every": 2}, "top_k does not take these options: .*train_every"),
        ("ledger", {"proxy": "small_cnn"}, "ledger_backprop does not take these options: .*scoring"),
        ("recorded", {}, "recorded_backprop needs run=FOLDER, an earlier run whose selection to repeat, got None"),
        ("recorded", {"run": "no/run"}, r"there is no no/run/ledger/epoch-\*.npz"),
    ],
)
def test_what_cannot_be_made(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, 0.5, options)
