"""The script that puts the leaderboard into pages."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from selective_backprop_lab.leaderboard.arms import DEFAULT
from selective_backprop_lab.leaderboard.board import make_board
from selective_backprop_lab.leaderboard.records import Cell, Outcome, Store
from selective_backprop_lab.leaderboard.tuning import TUNING_SEED
from selective_backprop_lab.leaderboard.workloads import find_workload
from selective_backprop_lab.study.frontier import Bound, Interval, Multiple
from tests.lab.leaderboard.made_up import PLAIN, RANDOM, outcomes

SCRIPT = str(Path(__file__).parents[3] / "tools" / "leaderboard_pages.py")
TOOL = runpy.run_path(SCRIPT)
FAST = [(length, compute / 3, error) for length, compute, error in PLAIN]
SLOW = [(length, 3 * compute, error) for length, compute, error in PLAIN]
ARMS = {"plain": PLAIN, "repeated random": RANDOM, DEFAULT.name: FAST, "best": FAST, "poor": SLOW}
RUNS = [run for arm in ARMS.items() for run in outcomes(*arm)]


def test_baselines_the_default_and_the_best_other_arm_have_a_colour():
    svg = TOOL["frontier_chart"](make_board("mnist", RUNS))
    for name in ("plain", "repeated random", DEFAULT.name, "best"):
        assert f">{name}</text>" in svg, "in the legend"
    assert ">poor</text>" not in svg
    assert svg.count('stroke-width="2.5"') == 4 and svg.count('stroke-width="1.2"') == 1


def test_what_is_saved_in_words():
    saved = TOOL["saved"]
    assert saved(Interval(Multiple(2.0), Multiple(1.25), Multiple(4.0, Bound.MORE))) == "50% (20% to more than 75%)"
    assert saved(Interval(Multiple(2.0), None, None)) == "50% (one seed)"


def test_pages_charts_and_evidence_are_written(tmp_path, monkeypatch):
    runs, trials = (Store(tmp_path / "records" / f"digits{name}.jsonl") for name in ("", ".tuning"))
    lengths = dict(zip((1, 2, 4), find_workload("digits").lengths, strict=True))
    for run in RUNS:
        runs.add(replace(run, cell=replace(run.cell, length=lengths[run.cell.length])))
    chosen = {run.cell.arm: run.cell.setting for run in RUNS}
    for arm, setting in chosen.items():
        trials.add(Outcome(Cell(arm, setting, find_workload("digits").middle, TUNING_SEED, True), 0.1, 2.0, 2.0, 2.0))
    (tmp_path / "records" / "digits.chosen.json").write_text(json.dumps(chosen))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results -->\nold\n<!-- /results -->\n<!-- leaderboard -->\n<!-- /leaderboard -->\nb\n")
    words = ["--into", page, "--figures", tmp_path / "charts", "--evidence", tmp_path / "evidence.json"]
    monkeypatch.setattr(sys, "argv", [SCRIPT, str(tmp_path / "records"), *map(str, words)])
    runpy.run_path(SCRIPT, run_name="__main__")
    text = page.read_text()
    assert text.startswith("a\n<!-- results -->\n| `ledger_backprop()`") and text.endswith("<!-- /leaderboard -->\nb\n")
    assert "| digits | 67% (" in text and "old" not in text and "### Lossless" in text
    assert "](charts/leaderboard-digits.svg)" in text
    assert (tmp_path / "charts" / "leaderboard-digits.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "evidence.json").read_text())["ledger_backprop"]["digits"] == pytest.approx(3, 0.05)


def test_a_page_needs_the_marks():
    with pytest.raises(ValueError, match="the page needs the lines <!-- results --> and <!-- /results -->"):
        TOOL["put_into"]("no marks", {"results": "new"})
