"""docs/guides/plugins.md, done for real: the page's package is installed in a folder, and the command line finds it."""

import json
import re
import sys
import tomllib

import pytest

from selective_backprop.lab.plugins import load_plugin, names_of_plugins
from tests.lab.command_line import records, run, text_of
from tests.pages import DOCS, blocks

PAGE = blocks((DOCS / "guides" / "plugins.md").read_text())


@pytest.fixture
def installed(tmp_path):
    """A folder with the page's package, as an installer would leave it."""
    (code,) = (block.code for block in PAGE if block.language == "python")
    (project,) = (tomllib.loads(block.code)["project"] for block in PAGE if block.language == "toml")
    folder = tmp_path / "site"
    about = folder / f"hard_examples-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (folder / "hard_examples.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"] | {"selective_backprop.models": {"linear": "hard_examples:linear"}}
    groups["selective_backprop.methods"]["broken"] = "hard_examples:nothing"
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
    (about / "entry_points.txt").write_text(text)
    return folder


class Installed:
    """Puts the folder on the path of a process. A class, because processes are sent what to do."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self):
        sys.path.insert(0, self.folder)


def test_a_run_with_nothing_but_plug_ins(installed, tmp_path):
    words = ("--method", "hard-examples:hardest@0.5:warmup_epochs=1", "--dataset", "hard-examples:stripes")
    more = ("--model", "Hard_Examples:linear", "--epochs", 2, "--out", tmp_path / "run")
    result = run("train", *words, *more, prepare=Installed(installed))
    assert result.returncode == 0, text_of(result)
    first, second = records(tmp_path / "run")
    assert (first["offered"], first["trained"]) == (64, 64)
    assert second["trained"] == 32
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == "hard-examples:hardest"


def test_plug_ins_are_listed_and_a_broken_one_disturbs_nobody(installed):
    result = run("list", "--json", prepare=Installed(installed))
    assert result.returncode == 0, text_of(result)
    told = json.loads(result.stdout)
    found = {method["name"]: method for method in told["methods"]}
    assert found["hard-examples:hardest"]["about"] == "Train on the hardest of each candidate batch."
    assert found["hard-examples:hardest"]["selectivity"]
    assert found["hard-examples:hardest"]["options"] == {"warmup_epochs": 0, "views": None}
    assert "cannot be imported from 'hard_examples:nothing'" in found["hard-examples:broken"]["error"]
    assert "hard-examples:stripes" in told["datasets"] and "hard-examples:linear" in told["models"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "hard-examples:hardst"), "Did you mean hard-examples:hardest?"),
        (("--method", "hard-examples:broken"), "repair or uninstall that package"),
        (("--method", "hard-examples:hardest:warmup_epoch=1"), "did you mean warmup_epochs?"),
        (("--method", "hard-examples:hardest:warmup_epochs=abc"), "warmup_epochs must be a number, got 'abc'"),
        (("--method", "hard_examples:linear"), "cannot be made with its defaults"),
        (("--dataset", "hard_examples:linear"), "must take image_size= and data_dir="),
        (("--model", "hard_examples:hardest"), "must take num_classes= and channels="),
        (("--method", "platform:platform"), "method 'platform:platform' must return a selective_backprop.Method"),
    ],
)
def test_mistakes(arguments, message, installed):
    result = run("train", *arguments, prepare=Installed(installed))
    assert result.returncode == 2, text_of(result)
    assert message in text_of(result)


def test_names_and_functions(installed, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    assert "hard-examples:hardest" in names_of_plugins("methods")
    assert load_plugin("methods", "hard-examples:hardest").__name__ == "hardest"
    with pytest.raises(ValueError, match=re.escape("name your own model as 'package.module:function', got 'a b:c'")):
        load_plugin("models", "a b:c")
