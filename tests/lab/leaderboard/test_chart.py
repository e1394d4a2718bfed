import re

import pytest

from selective_backprop.lab.leaderboard.arms import DEFAULT
from selective_backprop.lab.leaderboard.board import make_board
from selective_backprop.lab.leaderboard.chart import overview_chart
from tests.lab.leaderboard.made_up import PLAIN, RANDOM, outcomes

NEVER_GOOD = [(1, 1.0, 0.5), (2, 2.0, 0.4), (4, 4.0, 0.3)]
FAST = [(length, compute / 3, error) for length, compute, error in PLAIN]
AT_ONCE = [(1, 0.01, 0.1)]


def board(workload, arm, **more):
    baselines = [*outcomes("plain", PLAIN, **more), *outcomes("repeated random", RANDOM, **more)]
    return make_board(workload, [*baselines, *outcomes(DEFAULT.name, arm, **more)])


def marks(*boards):
    """Each point of the chart: (multiplier, workload, target, bound)."""
    svg = overview_chart(boards).decode()
    found = re.findall(r"is needed: ([\d.]+); workload: (\w+); target: ([^;]+); bound: ([^\"]+)\"", svg)
    return [(float(value), workload, target.replace("&#39;", "'"), bound) for value, workload, target, bound in found]


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_workload_has_a_point_for_each_target(seeds):
    found = marks(board("mnist", FAST, seeds=seeds), board("svhn", NEVER_GOOD, seeds=seeds))
    assert [point[1] for point in found] == ["mnist", "mnist", "svhn", "svhn"]
    assert [point[0] for point in found[:2]] == pytest.approx([3, 3])
    assert all(point[0] < 1 for point in found[2:])
    assert found[0][2] == "at the error of plain training's middle length"
    assert [point[3] for point in found] == ["exact", "exact", "less than", "less than"]


def test_what_is_far_away_is_drawn_at_the_edge():
    assert [(value, bound) for value, _, _, bound in marks(board("mnist", AT_ONCE))] == [(4.0, "more than")] * 2
