import json

import pytest
import torch

from selective_backprop_lab.runs.methods import METHODS, make_method
from selective_backprop_lab.runs.records import RunFolder
from tests.lab.command_line import run_function
from tests.lab.report.made_up import made_up_run
from tests.lab.states import seal

SETTINGS = {"method": "traditional", "seed": 0}
RECORDS = made_up_run("traditional", [0.5, 0.25]).records


def test_a_folder_comes_back(tmp_path):
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.checkpoint() is None
        assert folder.records() == []
        folder.save({"weights": torch.arange(3.0), "records": RECORDS[:1]})
        folder.save({"weights": torch.arange(4.0), "records": RECORDS})
    with RunFolder(tmp_path / "run", SETTINGS) as folder:
        assert folder.checkpoint()["weights"].tolist() == [0, 1, 2, 3]
        assert folder.records() == RECORDS
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
        match=r"epochs was null, is 3 now; seed was 0, is 1 now",
    ):
        RunFolder(tmp_path, {"method": "traditional", "seed": 1, "epochs": 3})
    assert json.loads((tmp_path / "config.json").read_text()) == SETTINGS
    RunFolder(tmp_path, SETTINGS).close()


def open_and_close(path):
    RunFolder(path, SETTINGS).close()


def test_two_processes_on_one_folder(tmp_path):
    folder = RunFolder(tmp_path, SETTINGS)
    result = run_function(open_and_close, tmp_path)
    assert result.returncode != 0
    assert "another process is working on" in result.stderr
    folder.close()
    assert run_function(open_and_close, tmp_path).returncode == 0


def save_two(path):
    """Epoch 0 and 1, by what RunFolder writes."""
    with RunFolder(path, SETTINGS) as folder:
        for epoch in range(2):
            folder.save({"weights": torch.full((100,), float(epoch)), "records": RECORDS[: epoch + 1]})
    return path


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


DAMAGES = {
    "empty": (lambda content: b"", "damaged"),
    "cut short": (lambda content: content[: len(content) // 2], "damaged"),
    "one bit flipped": (lambda content: flipped(content, len(content) // 2), "checksum"),
    "no records": (lambda content: seal({"kind": "run 1", "weights": 3}), "does not hold what it should: 'records'"),
    "another file": (lambda content: seal({"kind": "scores 1"}), "holds 'scores 1', where 'run 1' is expected"),
}


def flipped(content, position):
    changed = bytearray(content)
    changed[position] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_told_and_left_as_it_is(tmp_path, damage, reason):
    file = save_two(tmp_path) / "checkpoint.pt"
    file.write_bytes(damage(file.read_bytes()))
    before = contents(tmp_path)
    with RunFolder(tmp_path, SETTINGS) as folder, pytest.raises(ValueError, match=r"checkpoint\.pt") as error:
        folder.checkpoint()
    assert reason in str(error.value) and "move it away to start the run again" in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", [None, '{"epoch": 0}\n', json.dumps(RECORDS[0]) + '\n{"epo', "\x00", "[]"])
def test_records_come_back_from_the_checkpoint(tmp_path, text):
    """A kill between two writes, or damage."""
    file = save_two(tmp_path) / "records.jsonl"
    file.unlink() if text is None else file.write_text(text)
    with RunFolder(tmp_path, SETTINGS) as folder:
        assert folder.checkpoint()["records"] == folder.records() == RECORDS


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_error": None}, "test_error must be a number, got None"),
        ({"offered": 0}, "offered must be finite and at least 1, got 0"),
        ({"seconds": 1.5}, "seconds must be a number by phase, got 1.5"),
        ({"seconds": {"forward": 1.0}}, "must be a number, got None"),
    ],
)
def test_records_that_a_stranger_changed_are_refused_everywhere(tmp_path, changed, message):
    """A finished run is not trained further, but its records are drawn and added up."""
    save_two(tmp_path)
    records = [RECORDS[0], RECORDS[1] | changed]
    (tmp_path / "checkpoint.pt").write_bytes(seal({"kind": "run 1", "records": records}))
    before = (tmp_path / "records.jsonl").read_bytes()
    with RunFolder(tmp_path, SETTINGS) as folder:
        with pytest.raises(ValueError, match=rf"checkpoint.pt does not hold what it should: .*{message}"):
            folder.checkpoint()
        assert (tmp_path / "records.jsonl").read_bytes() == before
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (tmp_path / "checkpoint.pt").unlink()
        with pytest.raises(ValueError, match=rf"records.jsonl is damaged \(line 2: .*{message}"):
            folder.records()


def test_records_of_a_finished_run_come_back_without_asking_for_the_checkpoint(tmp_path):
    (save_two(tmp_path) / "records.jsonl").write_text("[]")
    with RunFolder(tmp_path, SETTINGS) as folder:
        assert folder.records() == RECORDS
        (tmp_path / "records.jsonl").write_text("[]")
        (tmp_path / "checkpoint.pt").unlink()
        with pytest.raises(
            ValueError, match=r"records.jsonl is damaged \(line 1: \[\] is no record\): continue the run"
        ):
            folder.records()


@pytest.mark.parametrize("now", [{"examples": 9, "images": "a"}, {"examples": 10, "images": "b"}])
def test_a_run_on_other_data(tmp_path, now):
    RunFolder(tmp_path, SETTINGS, {"train": {"examples": 10, "images": "a"}}).close()
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds a run on other data"):
        RunFolder(tmp_path, SETTINGS, {"train": now})
    assert contents(tmp_path) == before
    RunFolder(tmp_path, SETTINGS, {"train": {"examples": 10, "images": "a"}}).close()


def test_damaged_settings(tmp_path):
    (tmp_path / "config.json").write_text('{"method":')
    with pytest.raises(ValueError, match=r"config.json is damaged \(.*\): move it away"):
        RunFolder(tmp_path, SETTINGS)


def test_every_named_method_can_be_made():
    for name in METHODS.keys() - {"diet", "proxy_backprop"}:  # which need a file or a network
        assert make_method(name, 0.25).name == name
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
        ("top_k", {"proxy": 3}, "there is no model '3'"),
        ("top_k", {"proxy": "small_cnn", "train_every": -1}, "train_every must be a whole number .* got -1"),
        ("top_k", {"train_every": 2}, "train_every needs a proxy to learn: give proxy=MODEL too"),
        ("ledger", {"proxy": "small_cnn"}, "ledger_backprop has no option 'proxy'"),
    ],
)
def test_what_cannot_be_made(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, 0.5, options)
