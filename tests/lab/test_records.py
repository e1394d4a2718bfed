import json
import subprocess
import sys

import pytest
import torch

from selective_backprop.lab.runs.methods import METHODS, make_method
from selective_backprop.lab.runs.records import RunFolder
from selective_backprop.lab.runs.sealed import read_sealed, seal

SETTINGS = {"method": "traditional", "seed": 0}


def test_a_folder_comes_back(tmp_path):
    records = [{"epoch": 0, "error": 0.5}, {"epoch": 1, "error": 0.25}]
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.checkpoint() is None
        assert folder.records() == []
        folder.save({"weights": torch.arange(3.0), "records": records[:1]})
        folder.save({"weights": torch.arange(4.0), "records": records})
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
    with pytest.raises(
        ValueError,
        match=r"with other settings \(epochs was null, is 3 now; seed was 0, is 1 now\): choose another folder",
    ):
        RunFolder(tmp_path, {"method": "traditional", "seed": 1, "epochs": 3})
    assert json.loads((tmp_path / "config.json").read_text()) == SETTINGS
    RunFolder(tmp_path, SETTINGS).close()


def test_two_processes_on_one_folder(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS)
    code = (
        "import pathlib, sys; from selective_backprop.lab.runs.records import RunFolder\n"
        f"RunFolder(pathlib.Path(sys.argv[1]), {SETTINGS!r}).close()"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode != 0
    assert "another process is working on" in result.stderr
    folder.close()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0


def save_two(path):
    """Epoch 0 and 1, by what RunFolder writes."""
    with RunFolder(path, SETTINGS) as folder:
        for epoch in range(2):
            folder.save(
                {"weights": torch.full((100,), float(epoch)), "records": [{"epoch": i} for i in range(epoch + 1)]}
            )
    return path


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


DAMAGES = {
    "empty": (lambda content: b"", "it is empty"),
    "cut short": (lambda content: content[: len(content) // 2], "it does not end with a checksum"),
    "cut by a byte": (lambda content: content[:-1], "it does not end with a checksum"),
    "one bit flipped": (lambda content: flipped(content, len(content) // 2), "its checksum does not match its content"),
    "first bit flipped": (lambda content: flipped(content, 0), "its checksum does not match its content"),
    "checksum flipped": (lambda content: flipped(content, len(content) - 1), "its checksum does not match its content"),
    "longer": (lambda content: content + b"0", "it does not end with a checksum"),
    "not by us": (lambda content: content[:-71], "it does not end with a checksum"),
    "a list": (lambda content: seal([1, 2]), "it holds a list"),
    "no records": (lambda content: seal({"weights": 3}), "it has no records"),
}
every_damage = pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)


def flipped(content, position):
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)


@every_damage
def test_a_damaged_checkpoint_is_gone_behind(tmp_path, damage, reason, caplog):
    file = save_two(tmp_path) / "checkpoint.pt"
    file.write_bytes(damaged := damage(file.read_bytes()))
    with RunFolder(tmp_path, SETTINGS) as folder:
        state = folder.checkpoint()
        assert state["weights"].tolist() == [0] * 100
        assert folder.records() == state["records"] == [{"epoch": 0}], "records are cut back to it"
        (message,) = caplog.messages
        assert f"{file} is damaged ({reason}" in message
        assert (
            "the run continues from checkpoint-previous.pt, after 1 epochs; the damaged file is now called "
            "checkpoint-damaged" in message
        )
        assert (tmp_path / "checkpoint-damaged.pt").read_bytes() == damaged
        folder.save({"weights": torch.ones(100), "records": [{"epoch": 0}, {"epoch": 1}]})
        assert read_sealed(tmp_path / "checkpoint-previous.pt")["records"] == [{"epoch": 0}], "the good one stays"
        assert folder.checkpoint()["records"] == [{"epoch": 0}, {"epoch": 1}]


@every_damage
def test_two_damaged_checkpoints_are_left_as_they_are(tmp_path, damage, reason, caplog):
    save_two(tmp_path)
    for name in ("checkpoint.pt", "checkpoint-previous.pt"):
        (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    before = contents(tmp_path)
    with (
        RunFolder(tmp_path, SETTINGS) as folder,
        pytest.raises(ValueError, match=r"checkpoint\.pt is damaged") as error,
    ):
        folder.checkpoint()
    assert f"checkpoint-previous.pt is damaged ({reason}" in str(error.value)
    assert "there is no other checkpoint: move them away to start the run again" in str(error.value)
    assert contents(tmp_path) == before
    assert caplog.messages == []


def test_the_only_checkpoint_damaged(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as folder:
        folder.save({"records": []})
        (tmp_path / "checkpoint.pt").write_bytes(b"")
        with pytest.raises(
            ValueError, match=r"checkpoint.pt is damaged \(it is empty\), and there is no other .*: move it"
        ):
            folder.checkpoint()


@pytest.mark.parametrize("gone", ["records.jsonl", "checkpoint.pt"])
def test_what_a_killed_save_lacks_is_no_damage(tmp_path, gone, caplog):
    """Killed between two renames."""
    (save_two(tmp_path) / gone).unlink()
    with RunFolder(tmp_path, SETTINGS) as folder:
        expected = [{"epoch": 0}, {"epoch": 1}] if gone == "records.jsonl" else [{"epoch": 0}]
        assert folder.checkpoint()["records"] == folder.records() == expected
    assert caplog.messages == []


@pytest.mark.parametrize("text", ['{"epoch": 0}\n{"epo', "\x00", '{"epoch": 5}\n{"epoch": 1}\n'])
def test_records_come_back_from_the_checkpoint(tmp_path, text, caplog):
    (save_two(tmp_path) / "records.jsonl").write_text(text)
    with RunFolder(tmp_path, SETTINGS) as folder:
        folder.checkpoint()
        assert folder.records() == [{"epoch": 0}, {"epoch": 1}]
    assert [message.endswith("written again from checkpoint.pt") for message in caplog.messages] == [True]


def test_records_of_a_finished_run_come_back_without_asking_for_the_checkpoint(tmp_path):
    (save_two(tmp_path) / "records.jsonl").write_text("[]")
    with RunFolder(tmp_path, SETTINGS) as folder:
        assert folder.records() == [{"epoch": 0}, {"epoch": 1}]
        (tmp_path / "records.jsonl").write_text("[]")
        for name in ("checkpoint.pt", "checkpoint-previous.pt"):
            (tmp_path / name).unlink()
        with pytest.raises(ValueError, match=r"records.jsonl is damaged \(line 1 is no record\): continue the run"):
            folder.records()


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"train": {"examples": 9, "images": "a"}}, "10 train examples then, 9 now"),
        ({"train": {"examples": 10, "images": "b"}}, "as many examples as now, but other ones"),
    ],
)
def test_a_run_on_other_data(tmp_path, now, message):
    RunFolder(tmp_path, SETTINGS, {"train": {"examples": 10, "images": "a"}}).close()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"holds a run on other data \({message}\).*put the data back"):
        RunFolder(tmp_path, SETTINGS, now)
    assert contents(tmp_path) == before
    RunFolder(tmp_path, SETTINGS, {"train": {"examples": 10, "images": "a"}}).close()


def test_damaged_settings(tmp_path):
    (tmp_path / "config.json").write_text('{"method":')
    with pytest.raises(ValueError, match=r"config.json is damaged \(.*\): move it away"):
        RunFolder(tmp_path, SETTINGS)


def test_every_named_method_can_be_made():
    for name in METHODS.keys() - {"diet", "recorded_backprop", "reducible_loss"}:  # which need files, or a network
        assert make_method(name, 0.25).name == name
    assert make_method("reducible_loss", 0.25, {"reference": "small_cnn"}).policy.selectivity == 0.25
    assert make_method("kath18", 0.25).policy.selectivity == 0.25
    assert make_method("composer_backprop", 0.25).policy.selectivity == 0.25
    assert make_method("ledger_backprop", 0.25, {"loss_share": 0.8}).policy.loss_share == 0.8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("selective_backpropp", {}, "there is no method 'selective_backpropp': did you mean selective_backprop"),
        ("xyz", {}, "there is no method 'xyz': there are composer_backprop, diet, "),
        ("top_k", {"every": 3}, "top_k has no option 'every'.* Its options are selectivity, scoring"),
        ("top_k", {"proxy": "small_cn"}, "there is no model 'small_cn': did you mean small_cnn"),
        ("top_k", {"proxy": 3}, "proxy must be a word, got 3"),
        ("top_k", {"proxy": "small_cnn", "train_every": -1}, "train_every must be a whole number .* got -1"),
        ("top_k", {"train_every": 2}, "train_every needs a proxy to learn: give proxy=MODEL too"),
        ("ledger", {"proxy": "small_cnn"}, "ledger_backprop has no option 'proxy'"),
        ("reducible_loss", {}, "reducible_loss needs reference=MODEL, the name of the network .*, got None"),
        ("reducible_loss", {"reference": "small_cn"}, "there is no model 'small_cn': did you mean small_cnn"),
        (
            "reducible_loss",
            {"reference": "small_cnn", "reference_epochs": 0},
            "reference_epochs must be a whole number >= 1, got 0",
        ),
        (
            "reducible_loss",
            {"reference": "small_cnn", "every": 3},
            "reducible_loss has no option 'every'.* Its options are selectivity, reference, reference_epochs",
        ),
        ("recorded", {}, "recorded_backprop needs run=FOLDER, the earlier run whose selection it repeats"),
        ("recorded", {"run": "no/run"}, r"there is no no/run/ledger/epoch-\*.npz"),
    ],
)
def test_what_cannot_be_made(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, 0.5, options)
