"""Frontiers and compute multipliers against curves whose answers are known."""

import itertools
import math
import random

import pytest

from selective_backprop_lab.study.frontier import (
    Bound,
    Budget,
    Frontier,
    Interval,
    Multiple,
    Verdict,
    compute_multiplier,
    verdict,
)


def budget(error, cost, seeds=1):
    return Budget((error,) * seeds, (cost,) * seeds)


def frontier(*points, seeds=1):
    return Frontier([budget(error, cost, seeds) for cost, error in points])


HALVING = frontier((1, 0.4), (2, 0.3), (4, 0.2), (8, 0.1))  # 0.1 lower for every doubling


@pytest.mark.parametrize(
    ("error", "cost"), [(0.4, 1), (0.35, math.sqrt(2)), (0.3, 2), (0.25, 2 * math.sqrt(2)), (0.1, 8)]
)
def test_costs_are_interpolated_in_log_compute(error, cost):
    found, bound = HALVING.cost_of(error)
    assert found == pytest.approx(cost, rel=1e-12)
    assert bound is Bound.EXACT


def test_beyond_its_ends_there_are_bounds_only():
    assert HALVING.multiple(budget(0.5, 0.5)) == Multiple(2.0, Bound.LESS)
    assert HALVING.multiple(budget(0.05, 2)) == Multiple(4.0, Bound.MORE)


def test_an_error_below_all_is_bounded_by_the_largest_budget_even_if_a_smaller_one_was_better():
    assert frontier((1, 0.3), (2, 0.1), (8, 0.2)).multiple(budget(0.05, 1)) == Multiple(8.0, Bound.MORE)


def test_means_that_rise_are_left_out():
    dented = frontier((1, 0.4), (2, 0.45), (4, 0.2))
    assert dented.cost_of(0.3)[0] == pytest.approx(2)
    assert dented.cost_of(0.4)[0] == 1


def test_one_budget_gives_bounds_and_its_own_point():
    one = frontier((4, 0.2))
    assert one.multiple(budget(0.2, 2)) == Multiple(2.0)
    assert one.multiple(budget(0.3, 2)).bound is Bound.LESS
    assert one.multiple(budget(0.1, 2)).bound is Bound.MORE


def test_a_method_on_the_frontier_has_multiplier_one():
    for point in HALVING.budgets:
        assert HALVING.multiple(point).value == pytest.approx(1)


def every_resample(budget):
    """All equally likely draws with replacement of a few runs."""
    rows = range(len(budget.errors))
    for drawn in itertools.product(rows, repeat=len(budget.errors)):
        yield Budget(tuple(budget.errors[i] for i in drawn), tuple(budget.costs[i] for i in drawn))


def test_interval_equals_that_of_all_possible_resamples():
    """Independent and slow: three budgets of two and three runs have 4 * 4 * 27 resamples in all."""
    cheap, costly = Budget((0.40, 0.44), (1.0, 1.0)), Budget((0.20, 0.26), (4.0, 4.2))
    method = Budget((0.30, 0.27, 0.36), (1.0, 1.2, 0.9))
    values = sorted(
        Frontier([first, second]).multiple(third).value
        for first in every_resample(cheap)
        for second in every_resample(costly)
        for third in every_resample(method)
    )
    found = compute_multiplier([cheap, costly], [method], resamples=20_000, confidence=0.8)
    expected = values[int(0.1 * len(values))], values[int(0.9 * len(values)) - 1]
    # Both are discrete distributions of 432 points: 1.5% of their values lie between neighbours at these ends.
    assert found.low.value == pytest.approx(expected[0], rel=0.015)
    assert found.high.value == pytest.approx(expected[1], rel=0.015)


def test_interval_covers_the_truth_as_often_as_it_says():
    """Normal errors around a known frontier, 12 seeds: 90% intervals cover between 80% and 97% of 200 studies."""
    chance = random.Random(1)
    covered = 0
    for _ in range(200):

        def runs(mean, cost, n=12):
            return Budget(tuple(max(0.0, chance.gauss(mean, 0.01)) for _ in range(n)), (cost,) * n)

        plain = [runs(0.4, 1.0), runs(0.3, 2.0), runs(0.2, 4.0)]
        found = compute_multiplier(plain, [runs(0.25, 1.5)], resamples=200, confidence=0.9)
        truth = 2 * math.sqrt(2) / 1.5
        covered += found.low.value <= truth <= found.high.value
    assert 0.8 <= covered / 200 <= 0.97


def test_a_bound_may_be_anything_on_its_open_side():
    """Half of the draws of these runs lie below the frontier's best, so that nothing limits the interval above."""
    plain = [budget(0.4, 1.0, seeds=2), budget(0.2, 4.0, seeds=2)]
    found = compute_multiplier(plain, [Budget((0.1, 0.3), (4.0, 4.0))])
    assert found.high.bound is Bound.MORE and found.low.bound is Bound.EXACT
    never = compute_multiplier(plain, [Budget((0.3, 0.6), (1.0, 1.0))])
    assert never.low.bound is Bound.LESS and verdict([never]) is not Verdict.BETTER
    same = compute_multiplier(plain, [Budget((0.19, 0.21), (4.001, 4.001))])
    assert verdict([same]) is Verdict.SAME, "a thousandth more compute is not worse"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget((), ()), "one error and one cost per run"),
        (lambda: Budget((0.1, 0.2), (1.0,)), "2 errors and 1 costs"),
        (lambda: Budget((float("nan"),), (1.0,)), "must be a number >= 0, got nan"),
        (lambda: Budget((0.1,), (0.0,)), "its cost is 0"),
        (lambda: Frontier([]), "at least one budget"),
        (lambda: compute_multiplier(HALVING.budgets, [budget(0.2, 1)], confidence=1.0), "confidence must be in"),
    ],
)
def test_bad_input_is_a_clear_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def interval(low, high, bound=Bound.EXACT):
    return Interval(Multiple((low + high) / 2, bound), Multiple(low, bound), Multiple(high, bound))


@pytest.mark.parametrize(
    ("against", "expected"),
    [
        ([interval(1.2, 1.5), interval(1.1, 1.3)], Verdict.BETTER),
        ([interval(1.2, 1.5), interval(0.9, 1.3)], Verdict.SAME),
        ([interval(1.2, 1.5), interval(0.7, 0.9)], Verdict.WORSE),
        ([interval(1.2, 1.5), None], Verdict.NOT_CHECKED),
        ([interval(0.5, 0.9), None], Verdict.WORSE),
        ([interval(1.2, 1.5), Interval(Multiple(2.0), None, None)], Verdict.NOT_CHECKED),
        ([interval(1.2, 1.5, Bound.MORE), interval(1.1, 1.3)], Verdict.BETTER),
        ([interval(1.2, 1.5, Bound.LESS), interval(1.1, 1.3)], Verdict.NOT_CHECKED),
        ([interval(1.2, 1.5), interval(0.7, 0.8, Bound.MORE)], Verdict.NOT_CHECKED),
        ([interval(1.2, 1.5), interval(0.99, 1.01, Bound.MORE)], Verdict.BETTER),  # as much spent, and not reached
        ([interval(1.2, 1.5), interval(0.99, 1.01, Bound.LESS)], Verdict.WORSE),
    ],
)
def test_verdicts(against, expected):
    assert verdict(against) is expected
