"""Run folders from a stranger: no code that they name is run, no file that they name is opened, damage is told."""

import functools
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.files.sealed import write_sealed
from tests.lab.command_line import run, text_of
from tests.lab.test_datasets import write_set

SMALL = ("--epochs", 2, "--model", "tests.torture.network:small")
PROBES = ("--probe", "gradients,confidence")
TRAIN = ("train", *SMALL, *PROBES)


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


# ---- data


def test_a_table_cannot_name_images_on_this_machine(tmp_path):
    write_set(tmp_path / "mine")
    secret = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), (1, 2, 3)).save(secret)
    table = pq.read_table(tmp_path / "mine" / "train.parquet")
    cells = [{"bytes": None, "path": str(secret)}] * len(table)
    table = table.set_column(0, "image", pa.array(cells, table.schema.field("image").type))
    pq.write_table(table, tmp_path / "mine" / "train.parquet")
    with pytest.raises(ValueError, match="cannot be decoded"):
        load_images(tmp_path / "mine", cache_dir=tmp_path / "cache")


# ---- damage


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
