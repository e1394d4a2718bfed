"""The demo as a user runs it, shorter."""

import os
import re
import subprocess
import sys


def run(*arguments):
    command = [sys.executable, "-m", "selective_backprop.lab", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"COLUMNS": "80"})


def test_the_demo_prints_progress_and_a_table_and_writes_a_report(tmp_path):
    report = tmp_path / "demo" / "report.html"
    result = run("--epochs", "4", "--seeds", "1", "--report", str(report))
    assert result.returncode == 0, result.stderr
    for method in ("Traditional", "SB", "Stale-SB"):
        assert re.search(rf"{method}: epoch 4/4  error [\d.]+%  selectivity [\d.]+", result.stdout)
    row = re.search(r" Traditional +([\d.]+)% +[\d.]+ +3,592 +3,592 +1.00 +1.00 ", result.stdout)
    assert row, result.stdout
    assert float(row[1]) < 30
    assert "…" not in result.stdout, "it fits 80 columns"
    assert result.stdout.splitlines()[-1] == f"report: {report}"
    assert "Gradient fidelity" in report.read_text()
    sb = re.search(r" SB +[\d.]+% +[\d.]+ +([\d,]+) +([\d,]+) ", result.stdout)
    forward, backward = (int(number.replace(",", "")) for number in sb.groups())
    # A selection pass for all but the warm-up, whose first batch is checked, and what waits when an epoch begins.
    assert 3 * 898 + 32 - 2 * 31 <= forward - backward <= 3 * 898 + 32


def test_bad_arguments():
    result = run("--epochs", "1")
    assert result.returncode == 2
    assert "greater than or equal to 2" in result.stderr
