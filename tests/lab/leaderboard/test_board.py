import dataclasses

import pytest

from selective_backprop_lab.leaderboard.board import read_boards
from selective_backprop_lab.leaderboard.page import tables
from selective_backprop_lab.leaderboard.records import Store
from selective_backprop_lab.leaderboard.tuning import stores
from selective_backprop_lab.study.frontier import Bound
from tests.lab.leaderboard.made_up import DIGITS, cell_of, fill, outcome


def board(folder, shares, **more):
    fill(*stores(folder, "digits"), shares, **more)
    (found,) = read_boards(folder)
    return found


def method(standings, name):
    return next(one for one in standings.methods if one.name == name)


@pytest.mark.parametrize("strongest", ["traditional", "repeated_random", "random as ledger"])
def test_the_strongest_of_three_baselines_decides(tmp_path, strongest):
    others = {"traditional": 1.0, "repeated_random": 1.0, "random as ledger": 1.0} | {strongest: 0.5}
    found = method(board(tmp_path, others | {"ledger": 0.25}).compute, "ledger")
    multiples = {
        "traditional": found.plain["lossless"],
        "repeated_random": found.random["lossless"],
        "random as ledger": found.matched["lossless"],
    }
    for name, interval in multiples.items():
        assert interval.multiple.value == pytest.approx(2 if name == strongest else 4)
        assert interval.multiple.bound is Bound.EXACT
    assert found.multiplier("lossless") is multiples[strongest]


def test_beyond_the_longest_random_subsets_their_curve_is_that_of_plain_training(tmp_path):
    """Those of a method that scores cost less than the method, so they end early, and must not bound it from below."""
    shares = {"proxy": 0.5, "random as proxy": 0.25}
    found = method(board(tmp_path, shares, worse="random as proxy").compute, "proxy").multiplier("lossless")
    assert found.multiple.bound is Bound.EXACT
    assert found.multiple.value == pytest.approx(2, rel=0.05)


def test_seeds_that_lack_a_length_do_not_count(tmp_path):
    store, tried = stores(tmp_path, "digits")
    fill(store, tried, {}, seeds=2)
    lines = store.file.read_text().splitlines()
    last = cell_of("ledger", DIGITS.lengths[-1], seed=1)
    assert last in store.outcomes
    kept = [line for line, cell in zip(lines, store.outcomes, strict=True) if cell != last]
    store.file.write_text("\n".join(kept))
    (found,) = read_boards(tmp_path)
    assert [len(one.errors) for one in method(found.compute, "ledger").budgets] == [1, 1, 1, 1]
    assert [len(one.errors) for one in method(found.compute, "proxy").budgets] == [2, 2, 2, 2]
    assert "Fewer seeds than planned: digits (1)" in tables([found])


def test_runs_of_other_settings_do_not_count(tmp_path):
    store, _ = stores(tmp_path, "digits")
    other = dataclasses.replace(cell_of("ledger"), setting="ledger:loss_share=0.5,longer=1.5")
    store.add(outcome(other, 0.0, 0.1))
    found = board(tmp_path, {})
    assert method(found.compute, "ledger").multiplier("lossless").multiple.value == pytest.approx(1)


def test_seconds_are_compared_on_one_machine_at_one_speed(tmp_path):
    """Three seeds at one speed, one at another and one on another machine with the same processor."""
    store, tried = stores(tmp_path, "digits")
    fill(store, tried, {}, seeds=3, reference=(1.0, 1.04))
    for seed, more in ((3, {"reference": (1.0, 1.06)}), (4, {"machine": "there"})):
        for cell in [cell for cell in store.outcomes if cell.seed == 0]:
            store.add(outcome(dataclasses.replace(cell, seed=seed), 0.3, 1.0, **more))
    (found,) = read_boards(tmp_path)
    assert {run.cell.seed for run in found.runs} == {0, 1, 2, 3, 4}
    assert {run.cell.seed for run in found.comparable} == {0, 1, 2}
    cells = len(found.runs) // 5
    assert f"Left out: {2 * cells} of {5 * cells} on digits" in tables([found])


def test_changed_code_is_named_on_the_page(tmp_path):
    found = board(tmp_path, {}, commit="abc1234+changes")
    assert "Made at abc1234+changes" in tables([found])


def test_the_cost_of_a_goal_is_told_in_pflops_and_seconds(tmp_path):
    """Plain training reaches 20% in 2 epochs, each of 0.1 PFLOPs; the ledger in half of that."""
    found = board(tmp_path, {"ledger": 0.5}, seconds=3.0)
    found = dataclasses.replace(found, workload=dataclasses.replace(DIGITS, goal=0.2))
    text = tables([found])
    assert "| traditional | 0.2 | 3 |" in text and "| ledger | 0.1 | 3 |" in text
    unreached = dataclasses.replace(found, workload=dataclasses.replace(DIGITS, goal=0.05))
    assert "| ledger | not reached | not reached |" in tables([unreached])


def test_a_damaged_line_is_named(tmp_path):
    store, _ = stores(tmp_path, "digits")
    store.add(outcome(cell_of("ledger"), 0.1, 1.0))
    good = store.file.read_text()
    for wrong in ("{", "[]", '{"cell": {}}', good.replace("0.1", "NaN"), good.replace('"error": 0.1', '"error": -1')):
        store.file.write_text(good + wrong)
        with pytest.raises(ValueError, match=r"line 2 of .*digits.jsonl is no record of a run"):
            Store(store.file)
