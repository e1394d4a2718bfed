"""docs/guides/extending.md, done for real: everything on the page is added to a copy of the package, and run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import selective_backprop as sb

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "extending.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
NEW_FILE = re.compile(r"# (src/\S+\.py)\n")


def blocks(text):
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def apply(diff, root):
    """Add the lines that begin with + beside those that do not; hunks are separated by ..."""
    name, _, hunks = diff.partition("\n")
    path = root / name.strip()
    text = path.read_text()
    for hunk in hunks.removesuffix("\n").split("\n...\n"):
        lines = hunk.split("\n")
        old = "\n".join(line[1:] for line in lines if line.startswith(" "))
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {name}"
        text = text.replace(old, "\n".join(line[1:] for line in lines))
    path.write_text(text)


ALL = """
import doctest, importlib, json, runpy, sys

page = json.load(open("page.json"))
exec(page["script"], {"__name__": "__main__"})
for command in page["commands"]:
    sys.argv = ["selective-backprop", *command]
    try:
        runpy.run_module("selective_backprop_lab", run_name="__main__")
    except SystemExit as end:
        assert not end.code, command
tested = doctest.testmod(importlib.import_module("selective_backprop.methods.smoothed"))
assert tested.attempted and not tested.failed
"""


def test_everything_on_the_page_works(tmp_path):
    shutil.copytree(Path(sb.__file__).parent.parent, tmp_path / "src")
    scripts, commands = [], []
    for kind, block in blocks(PAGE):
        if kind == "diff":
            apply(block, tmp_path)
        elif kind == "sh":
            commands += [shlex.split(line)[1:] for line in block.splitlines()]
        elif new := NEW_FILE.match(block):
            assert not (tmp_path / new[1]).exists()
            (tmp_path / new[1]).write_text(block[new.end() :])
        else:
            scripts.append(block)
    assert len(scripts) >= 2 and commands

    # In one process: each would import torch anew.
    (tmp_path / "page.json").write_text(json.dumps({"script": "\n".join(scripts), "commands": commands}))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", ALL], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_addition_touches_three_source_files_at_most():
    assert len(SECTIONS) == 4
    for section in SECTIONS:
        files = set(re.findall(r"^[# ] ?(src/\S+\.py)$", section, flags=re.MULTILINE))
        assert 1 <= len(files) <= 3, f"{section.splitlines()[0]} touches {sorted(files)}"


NAMES = {
    "infobatch": r"infobatch|BelowMeanPolicy",
    "predicted_selective_backprop": r"StoredScorer|earlier_scores",
    "repeated_random": r"LeastSelectedScorer",
}


@pytest.mark.parametrize("method", NAMES)
def test_real_methods_are_in_the_files_that_the_page_names(method):
    package = Path(sb.__file__).parent
    library = list(package.rglob("*.py"))
    found = {str(path.relative_to(package)) for path in library if re.search(NAMES[method], path.read_text())}
    (row,) = re.findall(rf"^\| `{method}` \|.*$", PAGE, flags=re.MULTILINE)
    assert {name for name in found if not name.endswith("__init__.py")} == set(re.findall(r"`([a-z_/]+\.py)`", row))
