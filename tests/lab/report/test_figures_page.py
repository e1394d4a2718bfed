"""docs/lab/figures.md at the smallest size: every command runs, and its report has every table and figure named."""

import json
import re
import shlex
from pathlib import Path

from PIL import Image

from selective_backprop.lab.data.datasets import load_images
from tests.lab.command_line import run, text_of
from tests.pages import DOCS, commands, smallest

PAGE = (DOCS / "lab" / "figures.md").read_text()


def at_smallest(words, folder):
    """The same command at the smallest size, with its runs in this folder."""
    program, *words = words
    assert program == "selective-backprop"
    words = [word.replace("runs/", f"{folder}/runs/") for word in smallest(words)]
    if words[0] in ("sweep", "train"):
        return [*words, "--dataset", folder / "images"]
    # With three epochs the methods reach plain training's error, which the projection needs.
    return [*words, "--epochs", "3"] if words[0] == "compare" else words


def write_images(folder, *, train=96, test=32):
    """Write some of the digits as a data set of its own, on which an epoch takes no time."""
    digits = load_images("digits")
    for split, images, labels, count in (
        ("train", digits.train_images, digits.train_labels, train),
        ("test", digits.test_images, digits.test_labels, test),
    ):
        for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
            place = folder / split / str(int(label))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(place / f"{number}.png")


def as_if_elsewhere(run_folder):
    """Make a run look as if it came from another machine."""
    file = run_folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"accelerator": "Tesla T4"}))


def test_every_command_makes_what_the_page_says(tmp_path):
    parts = re.findall(r"```sh\n(.*?)```(.*?)(?=```|\Z)", PAGE, re.DOTALL)
    assert len(parts) >= 9
    write_images(tmp_path / "images")
    missing = []
    for block, text in parts:
        shrunk = [at_smallest(words, tmp_path) for words in commands(block)]
        for command in shrunk:
            if command[0] == "report" and (tmp_path / "runs" / "machine-b").exists():
                as_if_elsewhere(tmp_path / "runs" / "machine-b")
            result = run(*command)
            assert result.returncode == 0, f"{shlex.join(map(str, command))}\n{text_of(result)}"
        out = Path(shrunk[-1][shrunk[-1].index("--out") + 1])
        page = (out if out.suffix == ".html" else out / "report.html").read_text()
        rows = [line.split("|")[-2] for line in text.splitlines() if line.startswith("| ")][2:]
        names = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
        assert names
        missing += [f"{name} in {out}" for name in names if f'id="{name}"' not in page]
    assert missing == []


def test_every_table_and_figure_of_the_papers_is_on_the_page():
    first_cells = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| "))
    numbers = {
        int(number)
        for words in re.findall(r"Figures? ([\d and]+)", first_cells)
        for number in re.findall(r"\d+", words)
    }
    assert numbers == set(range(1, 19))
    assert {letter for letter in "abcdef" if f"({letter})" in first_cells} == set("abcdef")
