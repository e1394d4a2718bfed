import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_backprop.lab.study.curves import Curve, pareto_frontier, speed_up


def curve(*errors, pace=1.0):
    costs = [pace * (i + 1) for i in range(len(errors))]
    return Curve(list(errors), costs, costs)


def test_a_method_is_as_fast_as_itself():
    runs = [curve(0.3, 0.2, 0.1), curve(0.4, 0.1, 0.12)]
    for factor in (1.0, 1.1, 1.4):
        result = speed_up(runs, runs, factor, "seconds")
        assert (result.median, result.lowest, result.highest) == (1, 1, 1)


def test_a_target_counts_once_the_run_stays_below_it():
    traditional, method = [curve(0.4, 0.2, 0.11, 0.1)], [curve(0.3, 0.11, 0.2, 0.1, pace=0.5)]
    assert speed_up(traditional, method, 1.1, "seconds").median == pytest.approx(3 / 2)  # not 3 / 1: it rose again
    assert speed_up(traditional, method, 3.0, "compute").median == pytest.approx(2 / 0.5)


def test_the_median_lies_within_its_own_brackets():
    traditional = [curve(0.2, 0.1)] * 3
    result = speed_up(traditional, [curve(0.1, pace=pace) for pace in (0.5, 4.0, 1.0)], 1.1, "compute")
    assert (result.median, result.lowest, result.highest) == (2, 0.5, 4)


def test_a_target_that_one_seed_never_reaches_is_no_speed_up_of_all():
    traditional = [curve(0.2, 0.1), curve(0.2, 0.1)]
    result = speed_up(traditional, [curve(0.1, 0.1), curve(0.3, 0.3)], 1.1, "seconds")
    assert (result.median, result.lowest, result.highest) == (None, None, 2)
    assert str(result) == "never (never-2.00)"
    assert str(speed_up(traditional, [curve(0.3), curve(0.3)], 1.1, "seconds")) == "never"


def test_mean_of_unequal_lengths_ends_at_the_ends():
    mean = Curve.mean([curve(0.5, 0.3, 0.1), curve(0.4, 0.2)])
    assert mean.errors == pytest.approx([0.35, 0.15])
    assert mean.seconds == pytest.approx([1.5, 2.5])


def test_evaluation_is_off_the_clock():
    seconds = {"forward": 2.0, "evaluation": 5.0}
    records = [
        {"test_error": 0.5, "seconds": seconds, "compute": 0.7},
        {"test_error": 0.4, "seconds": seconds, "compute": 1},
    ]
    assert Curve.of(records) == Curve([0.5, 0.4], [2.0, 4.0], [0.7, 1.7])


errors = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(st.lists(st.tuples(errors, st.floats(0.1, 10)), min_size=1, max_size=4))
def test_the_frontier_is_what_no_point_dominates(runs):
    curves = {str(i): curve(*points, pace=pace) for i, (points, pace) in enumerate(runs)}
    points = {(c, e) for run in curves.values() for c, e in zip(run.seconds, run.errors, strict=True)}
    best = {(c, e) for c, e in points if not any(oc <= c and oe <= e and (oc, oe) != (c, e) for oc, oe in points)}
    found = pareto_frontier(curves, "seconds")
    assert {(c, e) for _, c, e in found} == best
    assert all(
        math.isclose(dict(zip(curves[label].seconds, curves[label].errors, strict=True))[c], e) for label, c, e in found
    )
