"""Run folders from a stranger: links in every place lead nowhere, pipes are not waited for, damage is told."""

import io
import json
import os
import shutil
import signal
import struct
import time
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from selective_backprop.lab.data.datasets import load_images
from tests.lab.command_line import run, start, text_of
from tests.lab.test_datasets import write_folders, write_set

SMALL = ("--epochs", 2, "--model", "tests.torture.network:small")
PROBES = ("--probe", "gradients,confidence,examples", "--log", "tensorboard")
TRAIN = ("train", *SMALL, *PROBES)
DEEP = "[" * 200_000


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def outside(tmp_path):
    """Files of the user outside the run, which must not change: one for each name that a run writes, and another."""
    place = tmp_path / "outside"
    place.mkdir()
    for name in ("precious", "epoch-0000.npz", "epoch-0001.npz", "gradients.jsonl", "examples.jsonl", "config.json"):
        (place / name).write_text("the user's own")
    return place


def told(*words, **options):
    """Run a command that must succeed or refuse with a plain message. Returns what it prints."""
    result = run(*words, **options)
    assert result.returncode in (0, 2), text_of(result)
    assert "Traceback" not in text_of(result)
    return result.returncode, text_of(result)


# ---- links

FILES = (
    "config.json",
    "environment.json",
    "data.json",
    "records.jsonl",
    "checkpoint.pt",
    "checkpoint-previous.pt",
    "checkpoint-damaged.pt",
    "ledger/epoch-0001.npz",
    "probes/gradients.jsonl",
    "probes/examples.jsonl",
    "probes/confidence-0001.npz",
)


def replace_by_link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def go_back_an_epoch(folder):
    shutil.copy(folder / "checkpoint-previous.pt", folder / "checkpoint.pt")


@pytest.mark.parametrize("ending", ["", ".part"])
def test_files_that_are_links_are_never_written_through(folder, outside, ending):
    """All at once for the names under which files are written first; each of the files themselves in turn."""
    before = content(outside)
    go_back_an_epoch(folder)
    copies = [FILES] if ending else [(name,) for name in FILES]
    for number, names in enumerate(copies):
        copy = shutil.copytree(folder, folder.parent / f"copy-{number}", symlinks=True)
        for name in names:
            replace_by_link(copy / f"{name}{ending}", outside / "precious")
        code, said = told(*TRAIN, "--out", copy, "--resume")
        assert content(outside) == before, names
        assert not ending or code == 0, said
    assert content(outside) == before


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(folder, outside):
    before = content(outside)
    replace_by_link(folder / ".lock", outside / "precious")
    code, said = told(*TRAIN, "--out", folder, "--resume")
    assert code == 2 and "must be a regular file to lock the folder, and is none: remove it" in said
    (folder / "config.json").write_text("{}")  # a folder that would be refused for another reason too
    assert told(*TRAIN, "--out", folder, "--resume")[0] == 2
    assert content(outside) == before


def test_a_lock_keeps_its_content(folder):
    """Also where it is another name of a file that the user has (a hard link)."""
    (folder / ".lock").write_text("precious")
    assert told(*TRAIN, "--out", folder, "--resume")[0] == 0
    assert (folder / ".lock").read_text() == "precious"


@pytest.mark.parametrize("name", ["ledger", "probes", "tensorboard"])
def test_folders_that_are_links_are_refused(folder, outside, name):
    before = content(outside)
    go_back_an_epoch(folder)
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


def test_a_report_replaces_a_link_and_not_what_it_leads_to(folder, outside, tmp_path):
    before = content(outside)
    for name in ("page.html", "page.html.part"):
        replace_by_link(tmp_path / name, outside / "precious")
    code, said = told("report", folder, "-o", tmp_path / "page.html")
    assert code == 0, said
    assert content(outside) == before
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>") and not (
        tmp_path / "page.html"
    ).is_symlink()
    assert told("report", folder, "-o", "/dev/full")[0] == 2
    assert os.path.exists("/dev/full") and not os.path.isfile("/dev/full")


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


@pytest.mark.parametrize(
    "name", ["config.json", "environment.json", "records.jsonl", "ledger/epoch-0000.npz", "probes/gradients.jsonl"]
)
def test_a_report_does_not_wait_for_pipes(folder, tmp_path, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, said = finishes("report", folder, "-o", tmp_path / "report.html")
    assert name.split("/")[-1] in said, "the file that is a pipe is named"
    assert code == 2 or (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", [".lock", "config.json", "data.json", "records.jsonl", "checkpoint.pt"])
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
    with pytest.raises(ValueError, match=r"holds no image, only the path .*, which is not opened"):
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


def test_an_image_that_is_a_pipe_is_refused(tmp_path):
    write_folders(tmp_path / "images")
    first = next((tmp_path / "images" / "train").rglob("*.png"))
    first.unlink()
    os.mkfifo(first)
    with pytest.raises(ValueError, match="is a pipe, not a file with content"):
        load_images(tmp_path / "images", cache_dir=tmp_path / "cache")


# ---- damage


@pytest.mark.parametrize("name", ["config.json", "data.json", "records.jsonl"])
def test_nesting_without_end_is_told(folder, tmp_path, name):
    (folder / name).write_text(DEEP)
    if name != "data.json":
        code, said = told("report", folder, "-o", tmp_path / "report.html")
        assert code == 2 and "nested more than 100 levels deep" in said, said
    code, said = told(*TRAIN, "--out", folder, "--resume")
    if name == "records.jsonl":
        assert code == 0 and "is damaged: written again from checkpoint.pt" in said, said
    else:
        assert code == 2 and "nested more than 100 levels deep" in said, said


def no_part(row):
    return row | {"part": "middle"}


def no_number(row):
    return row | {"cosine": "high"}


def nothing(row):
    return {"epoch": row["epoch"]}


def endless(row):
    return row | {"epoch": 1e999}


def damage_rows(file, change):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def damage_arrays(file):
    np.savez_compressed(buffer := io.BytesIO(), loss=np.array(["a"]), probability=np.zeros(3), selected=np.zeros(3))
    file.write_bytes(buffer.getvalue())


DAMAGES = {
    "ledger cut": ("ledger of", lambda run: os.truncate(run / "ledger/epoch-0001.npz", 100)),
    "ledger of words": ("ledger of", lambda run: damage_arrays(run / "ledger/epoch-0001.npz")),
    "ledger gone": ("ledger of", lambda run: (run / "ledger/epoch-0000.npz").unlink()),
    "environment": ("environment of", lambda run: (run / "environment.json").write_text("{")),
    "environment, deep": ("environment of", lambda run: (run / "environment.json").write_text(DEEP)),
    "confidence": ("confidence of", lambda run: os.truncate(run / "probes/confidence-0001.npz", 50)),
    "gradients, deep": ("gradients of", lambda run: (run / "probes/gradients.jsonl").write_text(DEEP)),
    **{
        f"gradients, {change.__name__}": (
            "gradients of",
            lambda run, change=change: damage_rows(run / "probes/gradients.jsonl", change),
        )
        for change in (no_part, no_number, nothing, endless)
    },
    "examples": ("examples followed in", lambda run: damage_rows(run / "probes/examples.jsonl", nothing)),
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
