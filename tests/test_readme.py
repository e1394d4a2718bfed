"""The README's Python, run as a reader would paste it: one block after the other."""

import re
from pathlib import Path

import torch

from selective_backprop import methods

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= 3
    names = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"offered 10,240, scored 0, trained 7,\d\d\d in \d+ batches.*selectivity 0\.7", printed)
    assert names["loader"].progress == 1
    assert names["scheduler"].last_epoch == names["total_steps"]
    assert (tmp_path / "loader.pt").exists()
    assert isinstance(names["model"], torch.nn.Module)


def test_every_method_is_in_the_table():
    for name in methods.__all__:
        assert f"| `{name}(" in README
