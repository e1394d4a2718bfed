"""The demo as a user runs it, shorter and with a small network."""

import re

from selective_backprop_lab.study import demo
from tests.lab.command_line import run


def shrink():
    """For the process of the demo."""
    small = demo.find_recipe("digits").with_(model="tests.torture.network:small")
    demo.find_recipe = {"digits": small}.get


def test_the_demo_prints_progress_a_table_and_a_verdict_and_writes_a_report(tmp_path):
    report = tmp_path / "demo" / "report.html"
    result = run("demo", "--epochs", "1,2", "--seeds", 2, "--report", report, prepare=shrink)
    assert result.returncode == 0, result.stderr
    words = " ".join(result.stdout.split())
    for arm in ("traditional, 2 epochs", "repeated_random, 1 epoch of compute", "ledger, 2 epochs", "SB, 2 epochs"):
        assert re.search(rf"{arm}: .*epoch 2/2  error [\d.]+%  selectivity [\d.]+", result.stderr)
    assert "M at " in words and "…" not in words, "it fits 80 columns"
    assert re.search(r"Compared with plain training, for (its|an) error of [\d.]+%.*: .*ledger ", words)
    assert re.search(r" wins: |subsets win: |No method beats both|Plain training is not beaten", words)
    assert "2 seeds only: differences may be chance." in words
    assert "too small to decide anything" in words
    assert result.stdout.splitlines()[-1] == f"report: {report}"
    assert report.exists()


def test_bad_arguments():
    result = run("demo", "--epochs", 8)
    assert result.returncode == 2
    assert "takes two lengths or more, such as 4,8,16" in " ".join(result.stderr.split())
