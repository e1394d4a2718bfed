"""docs/lab/figures.md, done at the smallest size: every command runs, and its report has every table and figure named."""

import json
import re
import shlex
from pathlib import Path

from selective_backprop.lab.runs.recipes import RECIPES
from tests.lab.command_line import run, text_of

PAGE = (Path(__file__).parents[3] / "docs" / "lab" / "figures.md").read_text()
NETWORKS = {
    "resnet18": "small_cnn",
    "densenet121": "small_resnet",
    "mobilenet_v2": "small_cnn",
    "googlenet": "small_resnet",
}
DROPPED = ("--recipe", "--data-dir", "--epochs", "--seeds")
LENGTHS = {"compare": ["--epochs", "2", "--seeds", "1"], "sweep": ["--epochs", "1"], "train": ["--epochs", "1"]}
LENGTHS["diet score"] = ["--epochs", "1", "--seeds", "1"]


def smallest(command, folder):
    """The same command on digits, for an epoch or two, with two values of each setting."""
    program, *words = shlex.split(command)
    assert program == "selective-backprop"
    name = " ".join(words[:2]) if words[0] == "diet" else words[0]
    kept = []
    for option, word in zip(["", *words], words, strict=False):
        if word in DROPPED or option in DROPPED:
            assert option != "--recipe" or word in RECIPES
            continue
        if option == "--vary":
            setting, _, values = word.partition("=")
            word = f"{setting}={','.join(NETWORKS.get(value, value) for value in values.split(',')[:2])}"
        kept.append(NETWORKS.get(word, word).replace("runs/", f"{folder}/runs/"))
    return [*kept, *LENGTHS.get(name, [])]


def as_if_elsewhere(run_folder):
    """Make a run look as if it came from another machine."""
    file = run_folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"accelerator": "Tesla T4"}))


def test_every_command_makes_what_the_page_says(tmp_path):
    parts = re.findall(r"```sh\n(.*?)```(.*?)(?=```|\Z)", PAGE, re.DOTALL)
    assert len(parts) >= 9
    missing = []
    for block, text in parts:
        commands = [smallest(line, tmp_path) for line in block.strip().splitlines()]
        for command in commands:
            if command[0] == "report" and (tmp_path / "runs" / "machine-b").exists():
                as_if_elsewhere(tmp_path / "runs" / "machine-b")
            result = run(*command)
            assert result.returncode == 0, f"{shlex.join(command)}\n{text_of(result)}"
        out = Path(commands[-1][commands[-1].index("--out") + 1])
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
