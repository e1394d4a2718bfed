"""docs/lab/figures.md at the smallest size: every command runs, and its report has every table and figure named."""

import json
import re
import shlex
from pathlib import Path

from tests.lab.command_line import run, text_of
from tests.pages import DOCS, commands, smallest, write_images

PAGE = (DOCS / "lab" / "figures.md").read_text()


def at_smallest(words, folder):
    """The same command at the smallest size, with its runs in this folder."""
    program, *words = words
    assert program == "selective-backprop"
    words = [word.replace("runs/", f"{folder}/runs/") for word in smallest(words, folder / "images")]
    # With three epochs the methods reach plain training's error, which the projection needs.
    return [*words, "--epochs", "3"] if words[0] == "compare" else words


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
            assert result.returncode == 0, f"{shlex.join(command)}\n{text_of(result)}"
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
