"""docs/guides/plugins.md, done for real: the command line finds the page's functions in a module on the path."""

import json
import re
import sys

import pytest

from selective_backprop_lab.plugins import load_function
from tests.lab.command_line import records, run, text_of
from tests.pages import DOCS, blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page's module."""
    page = blocks((DOCS / "guides" / "plugins.md").read_text())
    (code,) = (block.code for block in page if block.language == "python")
    folder = tmp_path_factory.mktemp("modules")
    (folder / "hard_examples.py").write_text(code)
    return folder


class OnPath:
    """Puts the folder on the path of a process. A class, because processes are sent what to do."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self):
        sys.path.insert(0, self.folder)


def test_a_run_with_nothing_but_ones_own_parts(folder, tmp_path):
    words = ("--method", "hard_examples:hardest@0.5:warmup_epochs=1", "--dataset", "hard_examples:stripes")
    more = ("--model", "hard_examples:linear", "--epochs", 2, "--out", tmp_path / "run")
    result = run("train", *words, *more, prepare=OnPath(folder))
    assert result.returncode == 0, text_of(result)
    first, second = records(tmp_path / "run")
    assert (first["offered"], first["trained"]) == (64, 64)
    assert second["trained"] == 32
    assert json.loads((tmp_path / "run" / "config.json").read_text())["method"] == "hard_examples:hardest"


def test_ones_own_method_is_shown_with_its_options(folder):
    result = run("list", "hard_examples:hardest", "--json", prepare=OnPath(folder))
    assert result.returncode == 0, text_of(result)
    told = json.loads(result.stdout)
    assert told["about"] == "Train on the hardest of each candidate batch." and told["selectivity"]
    assert told["options"] == {"warmup_epochs": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "hard_examples:hardst"), "has no function 'hardst' for method 'hard_examples:hardst'"),
        (("--method", "hard_examples:hardest:warmup_epoch=1"), "did you mean warmup_epochs?"),
        (("--method", "hard_examples:hardest:warmup_epochs=abc"), "warmup_epochs must be a number, got 'abc'"),
        (("--method", "hard_examples:linear"), "cannot be made with its defaults"),
        (("--dataset", "hard_examples:linear"), "must take image_size= and data_dir="),
        (("--model", "hard_examples:hardest"), "must take num_classes= and channels="),
        (("--method", "platform:platform"), "method 'platform:platform' must return a selective_backprop.Method"),
    ],
)
def test_mistakes(arguments, message, folder):
    result = run("train", *arguments, prepare=OnPath(folder))
    assert result.returncode == 2, text_of(result)
    assert message in text_of(result)


def test_names_that_are_none():
    with pytest.raises(ValueError, match=re.escape("name your own model as 'package.module:function', got 'a b:c'")):
        load_function("model", "a b:c")
    with pytest.raises(ValueError, match="no_such_module"):
        load_function("data set", "no_such_module:stripes")
