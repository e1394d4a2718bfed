"""Broken files, full disks and folders in use, as a user of `train` meets them: told in a sentence, nothing lost."""

import json
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.files.locks import FolderLock
from selective_backprop_lab.files.sealed import seal, unseal
from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.runs.records import RunFolder
from tests.lab.command_line import ENVIRONMENT, run, start, text_of
from tests.lab.test_datasets import random_pixels, write_folders, write_set
from tests.torture.files import NotHere, require_obedience, run_obediently, small_files_only
from tests.torture.files import refused as refused_in

TRAIN = ("train", "--epochs", 3, "--method", "selective_backprop", "--model", "tests.torture.network:small")


def content(folder):
    """Every file but the lock, by name."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(*words, folder=None, **options):
    """The message of a run that is refused, and leaves what is in the folder, if there is one."""
    return refused_in(*words, folder=folder or Path("no such folder"), **options)


# ---- data


def cut_short(folder):
    path = write_set(folder) / "train.parquet"
    os.truncate(path, path.stat().st_size // 2)


def no_test_set(folder):
    (write_set(folder) / "test.parquet").unlink()


def no_image(folder):
    write_set(folder, [*random_pixels(5), b"no image"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "mine/train.parquet cannot be read as parquet because it is damaged or cut short"),
        (no_test_set, "there is no test.parquet"),
        (no_image, "mine/train.parquet cannot be decoded"),
    ],
)
def test_data_that_cannot_be_read(tmp_path, damage, message):
    damage(tmp_path / "mine")
    environment = ENVIRONMENT | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = refused(*TRAIN, "--dataset", tmp_path / "mine", "--out", tmp_path / "run", env=environment)
    assert message in without_spaces_in_paths(said)
    assert not (tmp_path / "run").exists(), "no run was begun"
    assert not list((tmp_path / "cache").glob("selective_backprop/.decoding-*"))


def without_spaces_in_paths(text):
    """A box breaks long paths."""
    return text.replace("/ ", "/")


def test_a_data_dir_that_is_not_there(tmp_path):
    said = refused("train", "--recipe", "svhn", "--data-dir", tmp_path / "none", "--out", tmp_path / "run")
    assert "is no folder" in said
    assert not (tmp_path / "run").exists()


# ---- files of a run


def test_a_checkpoint_of_another_network(folder):
    state = unseal((folder / "checkpoint.pt").read_bytes())
    state["model"] = {name: value[:1] for name, value in state["model"].items() if value.dim()}
    state["records"].pop()  # a run that is finished needs no checkpoint
    (folder / "checkpoint.pt").write_bytes(seal(state))
    (folder / "records.jsonl").write_text("".join((folder / "records.jsonl").read_text().splitlines(True)[:-1]))
    said = refused(*TRAIN, "--out", folder, "--resume", folder=folder)
    assert "checkpoint.pt does not fit the run" in said


WRONG_STATES = {
    "optimizer": lambda state: state["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(1)),
    "random": lambda state: state.update(random=[]),
    "no records": lambda state: state.update(records=[]),
}


@pytest.mark.parametrize("name", WRONG_STATES)
def test_a_checkpoint_that_a_stranger_changed(folder, name):
    """A step with the wrong momentum would write beyond it, and end the process without a word."""
    state = unseal((folder / "checkpoint.pt").read_bytes())
    WRONG_STATES[name](state)
    (folder / "checkpoint.pt").write_bytes(seal(state))
    result = run(*TRAIN, "--out", folder, "--resume")
    assert result.returncode == 2 and "checkpoint.pt does not fit the run" in text_of(result), text_of(result)


def test_a_run_that_was_killed_before_its_last_record_is_trained_no_further(folder):
    """The checkpoint is written first."""
    file = folder / "records.jsonl"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(True)[:-1]))
    assert run(*TRAIN, "--out", folder, "--resume").returncode == 0
    assert file.read_text() == whole


@pytest.mark.parametrize("text", ["", "null", "[]", "\x00\x01"])
def test_damaged_settings(folder, text):
    (folder / "config.json").write_text(text)
    said = refused(*TRAIN, "--out", folder, "--resume", folder=folder)
    assert "config.json is damaged" in said and "move it away with the rest of the folder" in said


def test_records_of_who_knows_what_run(folder):
    (folder / "config.json").unlink()
    said = refused(*TRAIN, "--out", folder, "--resume", folder=folder)
    assert "holds records but no config.json: put it back, or choose another folder" in said


def test_what_a_killed_save_left_does_not_matter(folder):
    (folder / "checkpoint.pt.part").write_bytes(b"half a checkpoint")
    result = run(*TRAIN, "--out", folder, "--resume")
    assert result.returncode == 0, text_of(result)
    assert "damaged" not in text_of(result)


# ---- disks and folders


def test_no_room_at_the_very_start(tmp_path):
    said = refused(*TRAIN, "--out", tmp_path / "run", prepare=small_files_only(10))
    assert "File too large" in said and "config.json" in said
    assert content(tmp_path / "run") == {}
    assert run(*TRAIN, "--out", tmp_path / "run").returncode == 0, "with room, the same command works"


@pytest.mark.parametrize("fails", ["one", "two"])
def test_of_several_files_all_are_replaced_or_none(tmp_path, fails):
    contents = {tmp_path / name: b"new" if name != fails else b"new" * 10_000 for name in ("one", "two")}
    for path in contents:
        path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large; 30,003 bytes are needed.*" + fails):
            write_whole(contents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path) == {"one": b"old", "two": b"old"}
    write_whole(contents)
    assert content(tmp_path)["two"].startswith(b"new")


@pytest.fixture
def read_only(tmp_path):
    (tmp_path / "place").mkdir()
    (tmp_path / "place").chmod(0o555)
    try:
        require_obedience(tmp_path / "place")
    except NotHere as reason:
        pytest.skip(str(reason))
    yield tmp_path / "place"
    (tmp_path / "place").chmod(0o755)


def test_a_folder_that_cannot_be_written_to(read_only):
    for out in (read_only, read_only / "run"):
        said = refused(*TRAIN, "--out", out, folder=read_only, run=run_obediently)
        assert "Permission denied" in said and str(read_only.name) in said


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "run").write_text("notes")
    said = refused(*TRAIN, "--out", tmp_path / "run", folder=tmp_path)
    assert "is a file, but a run needs a folder" in said
    refused(*TRAIN, "--out", tmp_path / "run" / "deeper", folder=tmp_path)


def test_a_run_under_way_is_not_disturbed(tmp_path):
    folder, long = tmp_path / "run", ("train", "--epochs", 500, "--out", tmp_path / "run")
    with start(*long) as process:
        while not (folder / "checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        second = run(*long, "--resume")
        assert second.returncode == 2
        assert "another process is working on" in text_of(second)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == list(range(len(records)))


# ---- names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "sb:no_such_option=3"), "has no option 'no_such_option'"),
        (("--dataset", "/no/such/folder"), "there is no data set or folder '/no/such/folder'"),
        (("--dataset", "imagenet"), "image"),
    ],
)
def test_unknown_names(tmp_path, words, message):
    assert message in refused(*TRAIN, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["no.such.module:network", "selective_backprop_lab.models:no_such_network"])
def test_an_unknown_model_does_not_claim_the_folder(tmp_path, name):
    assert name.split(":")[1] in refused(*TRAIN, "--model", name, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the corrected command would be refused: other settings"


# ---- decoding


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache" / "selective_backprop"
    cache.mkdir(parents=True)
    return cache


def test_what_a_killed_decode_left_is_removed_at_the_next(tmp_path, own_cache):
    for name in (".decoding-killed", "other"):
        (own_cache / name).mkdir()
        (own_cache / name / "file").write_text("images")
    load_images(write_folders(tmp_path / "insects"))
    assert sorted(path.name[:8] for path in own_cache.iterdir()) == [".lock", "insects-", "other"]


def test_a_second_process_waits_for_the_first_and_decodes_nothing(tmp_path, own_cache):
    folder, loaded = write_folders(tmp_path / "insects"), []
    lock = FolderLock(own_cache)
    second = threading.Thread(target=lambda: loaded.append(load_images(folder)))
    second.start()
    second.join(0.3)
    assert not loaded and not list(own_cache.glob("insects-*"))
    lock.release()
    second.join()
    assert len(loaded[0].test_labels) == 4


def test_reading_parquet_shows_no_bar(tmp_path, own_cache, capfd):
    load_images(write_set(tmp_path / "mine"))
    assert capfd.readouterr().err == ""


def test_a_folder_is_free_again_after_an_error(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"config\.json is damaged"):
            RunFolder(tmp_path, {"seed": 0})
