"""The script that puts the leaderboard into pages."""

import runpy
import sys
from pathlib import Path

import pytest

from selective_backprop_lab.leaderboard.board import read_boards
from selective_backprop_lab.leaderboard.tuning import stores
from selective_backprop_lab.study.frontier import Bound, Interval, Multiple
from tests.lab.leaderboard.made_up import fill

SCRIPT = str(Path(__file__).parents[3] / "tools" / "leaderboard_pages.py")
TOOL = runpy.run_path(SCRIPT)
PAGE = "a\n<!-- results -->\nold\n<!-- /results -->\n<!-- leaderboard -->\nold\n<!-- /leaderboard -->\nb\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = [tmp_path / "records", "--into", page, "--figures", tmp_path / "charts"]
    monkeypatch.setattr(sys, "argv", [SCRIPT, *map(str, words)])
    return lambda: runpy.run_path(SCRIPT, run_name="__main__")


def test_pages_and_charts_are_written_once_there_are_records(run, tmp_path):
    run()
    assert (tmp_path / "page.md").read_text() == PAGE and not (tmp_path / "charts").exists()
    fill(*stores(tmp_path / "records", "digits"), {"ledger": 1 / 3, "proxy": 2.0})
    run()
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("a\n<!-- results -->\n| data and network") and text.endswith("<!-- /leaderboard -->\nb\n")
    assert "old" not in text and "### Lossless" in text and "](charts/leaderboard-digits.svg)" in text
    assert "| 10.00% | 67% (67% to 67%) | nothing | 10.00%, 10.00% |" in text
    assert (tmp_path / "charts" / "leaderboard-digits.svg").read_text().startswith("<svg")


def test_baselines_the_ledger_and_the_proxy_have_a_colour(tmp_path):
    fill(*stores(tmp_path, "digits"), {})
    svg = TOOL["frontier_chart"](read_boards(tmp_path)[0])
    for name in ("traditional", "repeated_random", "ledger", "proxy"):
        assert f">{name}</text>" in svg, "in the legend"


def test_what_is_saved_in_words():
    saved = TOOL["saved"]
    assert saved(Interval(Multiple(2.0), Multiple(1.25), Multiple(4.0, Bound.MORE))) == "50% (20% to more than 75%)"
    assert saved(Interval(Multiple(2.0), None, None)) == "50% (one seed)"


def test_a_page_needs_the_marks():
    with pytest.raises(ValueError, match="<!-- results --> and <!-- /results -->"):
        TOOL["put_into"]("no marks", {"results": "new"})
