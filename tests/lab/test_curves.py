import pytest

from selective_backprop_lab.study.curves import Curve, speed_up


def curve(*errors, pace=1.0):
    costs = [pace * (i + 1) for i in range(len(errors))]
    return Curve(list(errors), costs, costs)


def test_a_method_is_as_fast_as_itself():
    runs = [curve(0.3, 0.2, 0.1), curve(0.4, 0.1, 0.12)]
    for factor in (1.0, 1.1, 1.4):
        assert speed_up(runs, runs, factor) == "1.00 (1.00-1.00)"


def test_a_target_counts_once_the_run_stays_below_it():
    traditional, method = [curve(0.4, 0.2, 0.11, 0.1)], [curve(0.3, 0.11, 0.2, 0.1, pace=0.5)]
    assert speed_up(traditional, method, 1.1).startswith("1.50")  # 3 / 2, not 3 / 1: it rose again
    assert speed_up(traditional, method, 3.0).startswith("4.00")


def test_the_median_lies_within_its_own_brackets():
    traditional = [curve(0.2, 0.1)] * 3
    assert speed_up(traditional, [curve(0.1, pace=pace) for pace in (0.5, 4.0, 1.0)], 1.1) == "2.00 (0.50-4.00)"


def test_a_target_that_one_seed_never_reaches_is_no_speed_up_of_all():
    traditional = [curve(0.2, 0.1), curve(0.2, 0.1)]
    assert speed_up(traditional, [curve(0.1, 0.1), curve(0.3, 0.3)], 1.1) == "never (never-2.00)"
    assert speed_up(traditional, [curve(0.3), curve(0.3)], 1.1) == "never"


def test_the_mean_is_taken_epoch_by_epoch():
    mean = Curve.mean([curve(0.5, 0.3), curve(0.4, 0.2, pace=2.0)])
    assert mean.errors == pytest.approx([0.45, 0.25])
    assert mean.seconds == pytest.approx([1.5, 3.0])


def test_evaluation_is_off_the_clock():
    seconds = {"forward": 2.0, "evaluation": 5.0}
    records = [
        {"test_error": 0.5, "seconds": seconds, "compute": 0.7},
        {"test_error": 0.4, "seconds": seconds, "compute": 1},
    ]
    assert Curve.of(records) == Curve([0.5, 0.4], [2.0, 4.0], [0.7, 1.7])
