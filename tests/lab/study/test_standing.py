"""Who won, in numbers and in words, on hand-made runs."""

import pytest

from selective_backprop_lab.study.frontier import Budget, Verdict
from selective_backprop_lab.study.standing import LabelledRuns, standings
from selective_backprop_lab.study.tables import method_table


def arm(label, method, error, cost, seeds=5, spread=0.0, seconds=None):
    """Runs whose errors lie around one value, and whose costs are the same."""
    errors = tuple(error + spread * (i - (seeds - 1) / 2) for i in range(seeds))
    clock = None if seconds is None else Budget(errors, (seconds,) * seeds)
    return LabelledRuns(label, method, Budget(errors, (cost,) * seeds), clock)


def method(name, full_name, *points, **more):
    """A method at several lengths: pairs of error and cost."""
    return [arm(f"{name}, {i} epochs", full_name, error, cost, **more) for i, (error, cost) in enumerate(points, 1)]


PLAIN = method("traditional", "traditional", (0.5, 1), (0.4, 2), (0.3, 4), (0.2, 8))
RANDOM = method("repeated_random", "repeated_random", (0.5, 1), (0.4, 2), (0.31, 4))
LEDGER = method("ledger", "ledger_backprop", (0.4, 1), (0.3, 2), (0.2, 4))


def one(found, name):
    return next(standing for standing in found.methods if standing.name == name)


def test_all_methods_are_compared_at_the_same_errors_of_plain_training():
    found = standings([*PLAIN, *RANDOM, *LEDGER])
    assert found.targets == {"lossless": pytest.approx(0.204), "middle": pytest.approx(0.3)}
    assert [standing.name for standing in found.methods] == ["traditional", "repeated_random", "ledger"]
    assert found.plain.multiplier("middle") is None
    assert one(found, "ledger").plain["middle"].multiple.value == pytest.approx(2)
    assert list(standings([*PLAIN[:2], *LEDGER]).targets) == ["lossless"], "the middle of two lengths is the best"


def test_a_variant_of_plain_training_is_no_baseline():
    found = standings([*PLAIN, *RANDOM, *method("Larger batches", "traditional", (0.3, 5), (0.2, 10))])
    assert [standing.name for standing in found.others] == ["Larger batches"]
    assert len(found.plain.budgets) == 4 and found.others[0].verdict("middle") is Verdict.WORSE


def test_the_multiplier_is_the_lower_of_both():
    found = one(
        standings([*PLAIN, *RANDOM[:2], arm("repeated_random, 3", "repeated_random", 0.3, 3), *LEDGER]), "ledger"
    )
    assert found.plain["middle"].multiple.value == pytest.approx(4 / 2)
    assert found.random["middle"].multiple.value == pytest.approx(3 / 2)
    assert found.multiplier("middle") is found.random["middle"]
    assert found.verdict("middle") is Verdict.BETTER


def test_errors_that_a_method_reached_come_first():
    short = method("ledger", "ledger_backprop", (0.4, 1), (0.28, 2))
    assert list(standings([*PLAIN, *RANDOM, *short]).targets) == ["middle", "lossless"]
    none = standings([*PLAIN, *RANDOM, *method("ledger", "ledger_backprop", (0.45, 0.8))])
    assert list(none.targets) == ["own", "lossless", "middle"] and none.targets["own"] == pytest.approx(0.45)
    assert one(none, "ledger").multiplier("own").multiple.value == pytest.approx(2**0.5 / 0.8, rel=0.01)
    assert method_table(none).heading[3] == "M at 45.00%"
