"""Broken files, full disks and folders in use, as a user of `train` meets them: told in a sentence, nothing lost."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.lab.command_line import ENVIRONMENT, run, start, text_of
from tests.lab.states import seal, unseal
from tests.lab.test_datasets import random_pixels, write_set
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
        (cut_short, "mine/train.parquet cannot be read as parquet"),
        (no_test_set, "--validation"),
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


# ---- files of a run


WRONG_STATES = {
    "random": lambda state: state.update(random=[]),
    "no records": lambda state: state.update(records=[]),
}


@pytest.mark.parametrize("name", WRONG_STATES)
def test_a_checkpoint_that_a_stranger_changed(folder, name):
    state = unseal((folder / "checkpoint.pt").read_bytes())
    WRONG_STATES[name](state)
    (folder / "checkpoint.pt").write_bytes(seal(state))
    result = run(*TRAIN, "--out", folder, "--resume")
    assert result.returncode == 2 and "checkpoint.pt does not fit the run" in text_of(result), text_of(result)


@pytest.mark.parametrize("text", ["", "[]"])
def test_damaged_settings(folder, text):
    (folder / "config.json").write_text(text)
    said = refused(*TRAIN, "--out", folder, "--resume", folder=folder)
    assert "config.json" in said


# ---- disks and folders


def test_no_room_at_the_very_start(tmp_path):
    said = refused(*TRAIN, "--out", tmp_path / "run", prepare=small_files_only(10))
    assert "File too large" in said and "config.json" in said
    assert content(tmp_path / "run") == {}
    assert run(*TRAIN, "--out", tmp_path / "run").returncode == 0, "with room, the same command works"


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


# ---- decoding


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache" / "selective_backprop"
    cache.mkdir(parents=True)
    return cache
