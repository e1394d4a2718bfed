"""Run folders from a stranger: links in every place lead nowhere, pipes are not waited for, damage is told."""

import functools
import io
import json
import os
import shutil
import signal
import struct
import sys
import time
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.files.sealed import write_sealed
from tests.lab.command_line import run, start, text_of
from tests.lab.test_datasets import write_folders, write_set

SMALL = ("--epochs", 2, "--model", "tests.torture.network:small")
PROBES = ("--probe", "gradients,confidence")
TRAIN = ("train", *SMALL, *PROBES)
DEEP = "[" * 200_000


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def outside(tmp_path):
    """Files of the user outside the run, which must not change: one for each name that a run writes, and another."""
    place = tmp_path / "outside"
    place.mkdir()
    for name in ("precious", "epoch-0000.pt", "epoch-0001.pt", "gradients-0000.pt", "config.json"):
        (place / name).write_text("the user's own")
    return place


def told(*words, **options):
    """Run a command that must succeed or refuse with a plain message. Returns what it prints."""
    result = run(*words, **options)
    assert result.returncode in (0, 2), text_of(result)
    assert "Traceback" not in text_of(result)
    return result.returncode, text_of(result)


# ---- code

EVIL = "import pathlib\npathlib.Path('executed').mkdir()\ndef f(**options): pass\n"


def _work_in(folder):
    """As `python -m` does, which looks for modules in the current folder first."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))


@pytest.mark.parametrize("place", ["model", "method"])
def test_names_of_functions_in_a_run_are_not_imported(folder, tmp_path, place):
    """Not even if a folder of that name is where data sets are."""
    config = json.loads((folder / "config.json").read_text())
    (config if place == "method" else config["recipe"])[place] = "evil:f"
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "data" / "evil:f").mkdir(parents=True)
    words = ("report", folder, "-o", "report.html", "--images", "--data-dir", "data")
    code, said = told(*words, prepare=functools.partial(_work_in, tmp_path))
    assert code == 0, said
    assert not (tmp_path / "executed").exists()


def test_functions_in_the_records_of_a_leaderboard_must_be_named_on_the_command_line(tmp_path):
    prepare = functools.partial(_work_in, tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "leaderboard").mkdir()
    (tmp_path / "leaderboard" / "digits.chosen.json").write_text(json.dumps({"plain": "evil:f:rate=1"}))
    for words in (("run", "digits"), ("show",)):
        code, said = told("leaderboard", *words, prepare=prepare)
        assert code == 2 and (words[0] != "run" or "--arm plain=evil:f" in said)
    assert not (tmp_path / "executed").exists()


def test_files_that_a_run_names_are_not_opened(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    os.mkfifo(tmp_path / "scores.pt")  # to open it would wait for ever
    config["options"] = {"scores": str(tmp_path / "scores.pt")}
    (folder / "config.json").write_text(json.dumps(config))
    code, said = told("report", folder, "-o", tmp_path / "report.html")
    assert code == 0 and "left out" not in said, said


def test_a_terminal_obeys_nothing_in_a_message(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["epochs"] = "\x1b]0;title\x07\x1b[2J"
    (folder / "config.json").write_text(json.dumps(config))
    named = folder.rename(tmp_path / "\x1b[31mred")
    code, said = told("report", named, "-o", tmp_path / "report.html")
    assert code == 2 and "\x1b" not in said and "\x07" not in said and r"\x1b[31mred" in said, said


# ---- links

FILES = (
    "config.json",
    "records.jsonl",
    "checkpoint.pt",
    "ledger/epoch-0001.pt",
)


def replace_by_link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def go_back(folder):
    """To the moment before the first epoch was saved."""
    for name in ("checkpoint.pt", "records.jsonl"):
        (folder / name).unlink()


@pytest.mark.parametrize("ending", ["", ".part"])
def test_files_that_are_links_are_never_written_through(folder, outside, ending):
    """All at once for the names under which files are written first; each of the files themselves in turn."""
    before = content(outside)
    go_back(folder)
    copies = [FILES] if ending else [(name,) for name in FILES]
    for number, names in enumerate(copies):
        copy = shutil.copytree(folder, folder.parent / f"copy-{number}", symlinks=True)
        for name in names:
            replace_by_link(copy / f"{name}{ending}", outside / "precious")
        code, said = told(*TRAIN, "--out", copy, "--resume")
        assert content(outside) == before, names
        assert not ending or code == 0, said
    assert content(outside) == before


@pytest.mark.parametrize("name", ["ledger", "probes"])
def test_folders_that_are_links_are_refused(folder, outside, name):
    before = content(outside)
    go_back(folder)
    (outside / "empty").mkdir()
    replace_by_link(folder / name, outside / "empty" if name == "probes" else outside)
    code, said = told(*TRAIN, "--out", folder, "--resume")
    assert code == 2 and "this is a link, which may lead out of the folder that it is in" in said, said
    assert content(outside) == before


def test_an_experiment_does_not_follow_links(tmp_path, outside):
    before, out = content(outside), tmp_path / "compare"
    words = ("compare", *SMALL, "--method", "traditional", "--method", "sb", "--seeds", 1, "--out", out)
    (out / "sb").mkdir(parents=True)
    replace_by_link(out / "sb" / "seed-0", outside)
    code, said = told(*words)
    assert code == 2 and "this is a link" in said, said
    (out / "sb" / "seed-0").unlink()
    for name in ("tables.md", "report.html", "tables.md.part", "report.html.part"):
        replace_by_link(out / name, outside / "precious")
    code, said = told(*words)
    assert code == 0, said
    assert content(outside) == before
    assert not (out / "report.html").is_symlink() and not (out / "tables.md").is_symlink()


# ---- pipes


def finishes(*words, seconds=120):
    """As `told`, of a command that must not wait for anybody."""
    with start(*words) as process:
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        hangs = process.poll() is None
        if hangs:
            process.send_signal(signal.SIGKILL)
        output = "".join(process.communicate())
        assert not hangs, "it waits for a pipe"
    assert "Traceback" not in output and process.returncode in (0, 2), output
    return process.returncode, output


@pytest.mark.parametrize("name", ["config.json", "ledger/epoch-0000.pt"])
def test_a_report_does_not_wait_for_pipes(folder, tmp_path, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, said = finishes("report", folder, "-o", tmp_path / "report.html")
    assert name.split("/")[-1] in said, "the file that is a pipe is named"
    assert code == 2 or (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", [".lock", "checkpoint.pt"])
def test_a_run_does_not_wait_for_pipes(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    code, said = finishes(*TRAIN, "--out", folder, "--resume")
    assert code == 2 and ("pipe" in said or "regular file" in said), said


# ---- data


def test_a_table_cannot_name_images_on_this_machine(tmp_path):
    write_set(tmp_path / "mine")
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), (1, 2, 3)).save(secret)
    table = pq.read_table(tmp_path / "mine" / "train.parquet")
    cells = [{"bytes": None, "path": str(secret)}] * len(table)
    table = table.set_column(0, "image", pa.array(cells, table.schema.field("image").type))
    pq.write_table(table, tmp_path / "mine" / "train.parquet")
    with pytest.raises(ValueError, match=r"holds no image but .*'path': .*a path is not opened"):
        load_images(tmp_path / "mine", cache_dir=tmp_path / "cache")


def png_of(width, height):
    """A grey image in a few kilobytes, whatever its size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, rows = zlib.compressobj(9), io.BytesIO()
    for _ in range(height):
        rows.write(packer.compress(bytes(width + 1)))
    rows.write(packer.flush())
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows.getvalue()) + chunk(b"IEND", b"")


def test_images_of_too_many_pixels_are_refused(tmp_path):
    write_folders(tmp_path / "images")
    first = next((tmp_path / "images" / "train").rglob("*.png"))
    first.write_bytes(png_of(12_000, 12_000))
    with pytest.raises(ValueError, match=r"12000x12000 = 144,000,000 pixels, more than 89,478,485"):
        load_images(tmp_path / "images", cache_dir=tmp_path / "cache", image_size=8)


# ---- damage


@pytest.mark.parametrize("name", ["config.json", "records.jsonl"])
def test_nesting_without_end_is_told(folder, tmp_path, name):
    (folder / name).write_text(DEEP)
    code, said = told("report", folder, "-o", tmp_path / "report.html")
    assert code == 2 and "nested" in said, said


def damage_arrays(file):
    write_sealed(file, "arrays 1", {"loss": ["a"], "probability": torch.zeros(3), "selected": torch.zeros(3)})


DAMAGES = {
    "ledger of words": ("ledger of", lambda run: damage_arrays(run / "ledger/epoch-0001.pt")),
    "environment": ("environment of", lambda run: (run / "environment.json").write_text("{")),
    "gradients": ("gradients of", lambda run: os.truncate(run / "probes/gradients-0001.pt", 50)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_report_leaves_out_what_is_damaged_and_says_so(folder, tmp_path, name):
    what, damage = DAMAGES[name]
    damage(folder)
    result = run("report", folder, "-o", tmp_path / "report.html")
    assert result.returncode == 0, text_of(result)
    assert f"left out of the report: {what}" in " ".join(result.stderr.split()), text_of(result)
    page = (tmp_path / "report.html").read_text()
    assert "What was left out" in page and what in page
    assert "Which method won" in page, "the rest is there"


def test_a_whole_run_leaves_nothing_out(folder, tmp_path):
    result = run("report", folder, "-o", tmp_path / "report.html")
    assert result.returncode == 0 and not result.stderr.strip(), text_of(result)
    page = (tmp_path / "report.html").read_text()
    assert "What was left out" not in page and "Gradient fidelity" in page and "Confidence on the test set" in page
