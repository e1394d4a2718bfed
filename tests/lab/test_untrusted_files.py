"""Nothing that a command reads can make it run code: a malicious pickle in the place of every file is refused."""

import contextlib
import io
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import selective_backprop as sb
from selective_backprop_lab.cli import app
from tests.lab.test_datasets import write_folders, write_set

SMALL = ("--epochs", 2, "--model", "tests.torture.network:small")


class Malicious:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def by_torch(thing):
    torch.save({"scores": thing, "records": [thing]}, file := io.BytesIO())
    return file.getvalue()


def by_numpy(thing):
    np.save(file := io.BytesIO(), np.array([thing], dtype=object), allow_pickle=True)
    return file.getvalue()


FORMS = {
    "pickle": pickle.dumps,
    "torch": by_torch,
    "npy": by_numpy,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_attacks_work_on_who_trusts_them(form, tmp_path):
    content = io.BytesIO(FORMS[form](Malicious(tmp_path / "executed")))
    if form == "pickle":
        pickle.load(content)
    elif form.startswith("torch"):
        torch.load(content, weights_only=False)
    else:
        np.load(content, allow_pickle=True)
    assert (tmp_path / "executed").exists()


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """All kinds of files that commands read, as commands write them."""
    place = tmp_path_factory.mktemp("place")
    write_folders(place / "folders")
    write_set(place / "tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        for words in (
            ("train", *SMALL, "--probe", "gradients,confidence", "--out", place / "run"),
            ("diet", "score", "--epochs", 1, "--seeds", 1, "--model", SMALL[3], "--out", place / "scores.pt"),
            ("train", "--epochs", 1, "--dataset", place / "folders", "--out", place / "on-folders"),
        ):
            result = invoke(*words)
            assert result.exit_code == 0, result.output
    shutil.copytree(place / "run", place / "stopped")
    (place / "stopped" / "records.jsonl").unlink()  # as if killed before it was written
    shutil.copytree(place / "scores.pt.networks", place / "again.pt.networks")
    shutil.copytree(place / "scores.pt.networks", place / "unscored.pt.networks")
    (place / "unscored.pt.networks" / "seed-0" / "el2n-1.pt").unlink()
    return place


RESUME = ("train", *SMALL, "--out", "run", "--resume")
REPORT = ("report", "run", "-o", "report.html")
ON_FOLDERS = ("train", "--epochs", 1, "--dataset", "folders")
SCORE = ("diet", "score", "--epochs", 1, "--seeds", 1, "--model", SMALL[3], "--out")
# Files to replace, and a command that reads them.
READERS = [
    ("stopped/checkpoint*.pt", ("train", *SMALL, "--out", "stopped", "--resume")),
    ("run/config.json", REPORT),
    ("run/data.json", RESUME),
    ("run/records.jsonl", REPORT),
    ("run/ledger/epoch-0000.pt", REPORT),
    ("run/probes/confidence-*.pt", REPORT),
    ("run/probes/gradients-*.pt", REPORT),
    ("scores.pt", ("diet", "prune", "scores.pt")),
    ("again.pt.networks/seed-0/el2n-1.pt", (*SCORE, "again.pt")),
    ("unscored.pt.networks/seed-0/checkpoint*.pt", (*SCORE, "unscored.pt")),
    ("cache/selective_backprop/folders-*/*_images.npy", ON_FOLDERS),
    ("tables/train.parquet", ("train", "--epochs", 1, "--dataset", "tables")),
    ("folders/train/ant/0.png", (*ON_FOLDERS, "--out", "anew")),
]

# A report can do without them, and says so.
LEFT_OUT = (
    "run/environment.json",
    "run/ledger/epoch-0000.pt",
    "run/probes/confidence-*.pt",
    "run/probes/gradients-*.pt",
)


def forms_of(files):
    """A bare pickle, and what fits the file."""
    native = {".pt": ["torch"], ".npy": ["npy"]}
    return ["pickle", *native.get(Path(files).suffix, [])]


@contextlib.contextmanager
def without_new_files(place):
    """What a command adds would be read by the next one instead of the file that it is about."""
    known = set(place.rglob("*"))
    try:
        yield
    finally:
        for path in sorted(set(place.rglob("*")) - known, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("files", "words", "form"), [(files, words, form) for files, words in READERS for form in forms_of(files)]
)
def test_no_file_is_trusted(files, words, form, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    found = sorted(place.glob(files))
    assert found, "the file is there to be replaced"
    before = {path: path.read_bytes() for path in found}
    times = {path: path.stat() for path in found}
    with without_new_files(place):
        try:
            for path in found:
                path.write_bytes(FORMS[form](Malicious(tmp_path / "executed")))
            result = invoke(*words)
            after = {path: path.read_bytes() for path in found}
        finally:
            for path, content in before.items():
                path.write_bytes(content)
                os.utime(path, ns=(times[path].st_atime_ns, times[path].st_mtime_ns))  # the cache goes by it
    assert not (tmp_path / "executed").exists()
    if words == REPORT and files in LEFT_OUT:
        assert result.exit_code == 0 and "left out of the report" in result.output, result.output
    else:
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit), result.exception
    assert all(path.name in "".join(result.output.split()) for path in found[:1]) or "cache" in files, result.output
    assert all(after[path] == FORMS[form](Malicious(tmp_path / "executed")) for path in found), "left as it was"


def test_every_file_there_is_can_be_read_when_it_is_not_malicious(place, monkeypatch):
    """Or the test above would prove nothing."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    for words in {words: None for _, words in READERS}:
        with without_new_files(place):
            result = invoke(*words)
        assert result.exit_code == 0, (words, result.output)


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_the_librarys_own_files(form, tmp_path):
    (tmp_path / "file").write_bytes(FORMS[form](Malicious(tmp_path / "executed")))
    with pytest.raises(ValueError, match="was not written by this package"):
        sb.pruning.load_scores(tmp_path / "file")
    assert not (tmp_path / "executed").exists()


def test_nobody_in_the_package_unpickles():
    """Every torch.load says weights_only=True, and numpy, pickle and yaml are not asked for more than plain data."""
    exceptions = {
        "chain/queue.py",  # no file: messages of ranks of one job to each other
    }
    package = Path(sb.__file__).parent
    folders = (package, package.parent / "selective_backprop_lab")
    source = {
        path.relative_to(folder).as_posix(): path.read_text() for folder in folders for path in folder.rglob("*.py")
    }
    assert exceptions <= source.keys()
    for path, text in source.items():
        if path in exceptions:
            continue
        assert text.count("torch.load(") == len(re.findall(r"torch\.load\([^\n]*weights_only=True", text)), path
        for word in ("allow_pickle=True", "import pickle", "import yaml", "import dill", "trust_remote_code", "joblib"):
            assert word not in text, (path, word)
