import dataclasses
import math

import pytest

from selective_backprop_lab.leaderboard.board import make_board, performance_profile, whole_seeds
from selective_backprop_lab.study.frontier import Bound, Budget, compute_multiplier
from tests.lab.leaderboard.made_up import PLAIN, RANDOM, outcomes


def budgets(*points):
    return [Budget((error,), (cost,)) for cost, error in points]


def on_board(*arms, **more):
    baselines = [*outcomes("plain", PLAIN, **more), *outcomes("repeated random", RANDOM, **more)]
    return make_board("digits", [*baselines, *(run for arm in arms for run in arm)])


def test_half_the_compute_at_every_error_is_a_multiplier_of_two():
    halved = [(length, compute / 2, error) for length, compute, error in PLAIN]
    place = on_board(outcomes("fast", halved)).place("fast")
    assert {target: interval.multiple.value for target, interval in place.plain.items()} == {
        "cheap": pytest.approx(2),
        "middle": pytest.approx(2),
        "lossless": pytest.approx(2),
    }


def test_the_arm_that_is_plain_training_again_has_a_multiplier_of_one():
    place = on_board(outcomes("same", PLAIN)).place("same")
    assert all(interval.multiple.value == pytest.approx(1) for interval in place.plain.values())
    assert all(interval.multiple.bound is Bound.EXACT for interval in place.plain.values())


def test_costs_may_be_seconds():
    """Half of the compute in three quarters of the time."""
    fast = outcomes("fast", [(length, compute / 2, error) for length, compute, error in PLAIN])
    runs = [*outcomes("plain", PLAIN), *outcomes("repeated random", RANDOM)]
    timed = [dataclasses.replace(run, cpu_seconds=3.0 * run.compute) for run in runs]
    timed += [dataclasses.replace(run, cpu_seconds=4.5 * run.compute) for run in fast]
    for cost, multiple in (("compute", 2), ("cpu_seconds", 4 / 3)):
        assert make_board("digits", timed, cost).place("fast").plain["middle"].multiple.value == pytest.approx(multiple)


def test_both_baselines_count_and_the_stronger_one_decides():
    # Random subsets reach every error with half of plain training's compute here, so M against them is half as large.
    random = [(length, compute / 2, error) for length, compute, error in PLAIN]
    fast = [(length, compute / 4, error) for length, compute, error in PLAIN]
    runs = [*outcomes("plain", PLAIN), *outcomes("repeated random", random), *outcomes("fast", fast)]
    place = make_board("digits", runs).place("fast")
    assert place.plain["middle"].multiple.value == pytest.approx(4)
    assert place.random["middle"].multiple.value == pytest.approx(2)
    assert place.against_both("middle") is place.random["middle"]


@pytest.mark.parametrize(
    ("plain", "arm", "error", "expected"),
    [
        # never reached by the arm: M is at most plain's compute over the arm's largest
        ([(1, 0.4), (4, 0.1)], [(1, 0.4), (2, 0.3)], 0.1, (2.0, Bound.LESS)),
        # never reached by plain training: M is at least its largest compute over the arm's
        ([(1, 0.4), (4, 0.2)], [(1, 0.4), (2, 0.1)], 0.1, (2.0, Bound.MORE)),
        # reached by the arm's shortest run already
        ([(1, 0.4), (4, 0.1)], [(1, 0.05)], 0.1, (4.0, Bound.MORE)),
    ],
)
def test_outside_of_a_curve_there_are_only_bounds(plain, arm, error, expected):
    found = compute_multiplier(budgets(*plain), budgets(*arm), error).multiple
    assert (pytest.approx(found.value), found.bound) == expected


def test_nothing_is_known_where_neither_side_reaches_the_error():
    found = compute_multiplier(budgets((1, 0.4)), budgets((1, 0.4)), 0.1).multiple
    assert (found.value, found.bound) == (math.inf, Bound.LESS)


def test_intervals_hold_the_multiplier_and_shrink_to_it_without_spread():
    halved = [(length, compute / 2, error) for length, compute, error in PLAIN]
    sure = on_board(outcomes("fast", halved)).place("fast").plain["middle"]
    assert sure.low.value == pytest.approx(sure.high.value) == pytest.approx(2)
    unsure = on_board(outcomes("fast", halved, spread=0.04), spread=0.04).place("fast").plain["middle"]
    assert unsure.low.value < 2 < unsure.high.value


def test_one_seed_has_no_interval():
    interval = on_board(outcomes("fast", PLAIN, seeds=1)).place("fast").plain["middle"]
    assert interval.low is None


def test_without_a_baseline_nothing_is_compared():
    with pytest.raises(ValueError, match="digits has no runs of plain or of repeated random"):
        make_board("digits", outcomes("plain", PLAIN))


def test_the_profile_counts_workloads_near_the_best():
    fast = [(length, compute / 2, error) for length, compute, error in PLAIN]
    one = on_board(outcomes("fast", fast))
    other = on_board(outcomes("fast", [(length, 1.5 * compute, error) for length, compute, error in PLAIN]))
    profile = performance_profile([one, other], "middle", [1.0, 1.6, 2.0])
    assert profile["fast"] == [0.5, 1.0, 1.0]
    assert profile["plain"] == [0.5, 0.5, 1.0]


def test_an_arm_that_never_gets_there_is_never_near():
    poor = on_board(outcomes("poor", [(1, 1.0, 0.5), (2, 2.0, 0.45), (4, 4.0, 0.44)]))
    assert performance_profile([poor], "middle", [math.inf])["poor"] == [1.0]
    assert performance_profile([poor], "middle", [1e9])["poor"] == [0.0]
    assert poor.cost("poor", "middle") is None


def test_plain_training_continues_the_curve_of_random_subsets():
    # Subsets end at 2 epochs of compute and an error of 0.3; lower errors are reached by plain training only.
    random = [(1, 0.5, 0.5), (2, 1.0, 0.4), (4, 2.0, 0.3)]
    runs = [*outcomes("plain", PLAIN), *outcomes("repeated random", random), *outcomes("same", PLAIN)]
    found = make_board("digits", runs).place("same").random["lossless"]
    # Between 2 and 4 epochs the curve of subsets starts at a higher error, so that it is a little dearer.
    assert found.multiple.value == pytest.approx(1, abs=0.01)
    assert found.multiple.bound is Bound.EXACT


def test_a_seed_that_lacks_a_length_does_not_count_for_its_arm():
    lengths = {"plain": (1, 2, 4), "ledger, default": (1, 2, 4), "SB": (1, 2, 4)}
    runs = [*outcomes("plain", PLAIN), *outcomes("ledger, default", PLAIN, seeds=2), *outcomes("SB", PLAIN, seeds=1)]
    begun = [*outcomes("ledger, default", PLAIN[:2], seeds=3)[2::3], *outcomes("SB", PLAIN[:1], seeds=2)[1:]]
    kept = {(one.cell.arm, one.cell.length, one.cell.seed) for one in whole_seeds([*runs, *begun], lengths)}
    assert kept == {(arm, n, seed) for arm in ("plain", "ledger, default") for n in (1, 2, 4) for seed in (0, 1)} | {
        ("SB", n, 0) for n in (1, 2, 4)
    }
    assert whole_seeds(begun, lengths) == [], "nothing is shown of a first seed that is not complete"
