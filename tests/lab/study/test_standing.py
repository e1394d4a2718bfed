"""Who won, in numbers and in words, on hand-made runs."""

import pytest

from selective_backprop_lab.study.frontier import Bound, Budget, Verdict
from selective_backprop_lab.study.standing import LabelledRuns, alerts, saved, standings, winner
from selective_backprop_lab.study.tables import arms_table, method_table


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


def test_random_subsets_of_the_methods_own_sizes_are_a_baseline_of_that_method_alone():
    """They do as well as the ledger: what looks like its choice of examples is its falling number of them."""
    matched = method("random as ledger", "repeated_random", (0.4, 1), (0.3, 2), (0.2, 4), spread=0.001)
    found = standings([*PLAIN, *RANDOM, *LEDGER, *method("sb", "selective_backprop", (0.3, 2), (0.2, 4)), *matched])
    assert [standing.name for standing in found.others] == ["ledger", "sb"]
    ledger, sb = one(found, "ledger"), one(found, "sb")
    assert ledger.matched["middle"].multiple.value == pytest.approx(1)
    assert ledger.multiplier("middle") is ledger.matched["middle"]
    assert ledger.verdict("middle") is Verdict.SAME and sb.verdict("middle") is Verdict.BETTER
    assert sb.matched == {} and "Random subsets do as well as ledger." in alerts(found)


def test_a_method_that_beats_both_wins():
    found = standings([*PLAIN, *RANDOM, *LEDGER])
    assert found.others[0].verdict("lossless") is Verdict.BETTER
    assert winner(found).startswith("**ledger wins**: for an error of 20.40% (within 2% of plain training's best)")
    assert "plain training needs **2.00x (2.00 to 2.00) as much compute**, and random subsets need 2.01x" in winner(
        found
    )
    assert alerts(found) == []


def test_baselines_are_judged_against_each_other_alone():
    cheap = method("repeated_random", "repeated_random", (0.4, 1), (0.3, 2), (0.2, 4))
    found = standings([*PLAIN, *cheap, *method("sb", "selective_backprop", (0.3, 5), (0.2, 9))])
    assert found.random.verdict("lossless") is Verdict.BETTER and found.random.random == {}
    assert winner(found).startswith("**Random subsets win**: for an error of 20.40%")
    assert "The closest is sb" in winner(found)
    assert found.plain.verdict("lossless") is Verdict.NOT_CHECKED


def test_plain_training_is_named_where_it_is_not_beaten():
    found = standings([*PLAIN, *RANDOM, *method("sb", "selective_backprop", (0.3, 5), (0.2, 10))])
    assert one(found, "sb").plain["middle"].multiple.value == pytest.approx(4 / 5)
    assert one(found, "sb").verdict("middle") is Verdict.WORSE
    assert winner(found).startswith("**Plain training is not beaten.** The closest is sb")


def test_random_subsets_that_do_as_well_are_told():
    as_good = method("repeated_random", "repeated_random", (0.4, 1), (0.3, 2), (0.2, 4))
    found = standings([*PLAIN, *as_good, *LEDGER])
    assert found.others[0].verdict("middle") is Verdict.SAME
    assert "Random subsets do as well as ledger." in alerts(found)
    dearer = standings([*PLAIN, *as_good, *method("sb", "selective_backprop", (0.3, 3), (0.2, 6))])
    assert "Random subsets do better than sb." in alerts(dearer)


def test_seeds_that_overlap_are_not_told_apart():
    spread = method("traditional", "traditional", (0.5, 2), (0.4, 4), (0.3, 8), spread=0.1)
    found = standings([*spread, *RANDOM, *method("sb", "selective_backprop", (0.42, 2), (0.3, 7), spread=0.1)])
    assert one(found, "sb").verdict("lossless") is Verdict.SAME


def test_without_baselines_nothing_is_claimed():
    alone = standings(LEDGER)
    assert alone.targets == {} and alone.others[0].plain == {}
    assert winner(alone) == "Nothing can be said: plain training was not run."
    assert alerts(alone)[0] == "Plain training was not run: no method can be judged."
    unchecked = standings([*PLAIN, *LEDGER])
    assert "Random subsets were not run, so nobody knows" in winner(unchecked)
    assert unchecked.others[0].verdict("lossless") is Verdict.NOT_CHECKED
    assert "No other method was run." in winner(standings(PLAIN))


def test_one_seed_is_a_look():
    found = standings(
        [
            *method("traditional", "traditional", (0.3, 4), (0.2, 8), seeds=1),
            *method("repeated_random", "repeated_random", (0.3, 4), seeds=1),
            *method("ledger", "ledger_backprop", (0.2, 4), seeds=1),
        ]
    )
    assert winner(found).startswith("**One seed proves nothing.** The closest is ledger: for an error of 20.40%")
    assert "1 seed only: differences may be chance." in alerts(found)
    assert found.others[0].verdict("lossless") is Verdict.NOT_CHECKED


def test_alerts_name_one_length_and_few_seeds():
    text = " ".join(
        alerts(standings([arm("traditional", "traditional", 0.2, 8, seeds=2), arm("sb", "top_k", 0.2, 4, seeds=2)]))
    )
    assert "at one length only" in text and "2 seeds only" in text and "Random subsets were not run" in text


def test_a_single_seed_among_several_is_left_out():
    lonely = arm("traditional, 3 epochs", "traditional", 0.1, 3, seeds=1)
    found = standings([*PLAIN, lonely, *RANDOM, *LEDGER])
    assert found.targets["lossless"] == pytest.approx(0.204)
    assert found.others[0].plain["middle"].low is not None


def test_what_is_not_reached_is_said():
    found = standings([*PLAIN, *RANDOM, arm("tiny", "top_k", 0.6, 0.5)])
    tiny = one(found, "tiny")
    assert not tiny.reaches(found.targets["middle"]) and tiny.verdict("middle") is Verdict.NOT_CHECKED
    assert tiny.plain["middle"].multiple.bound is Bound.LESS
    assert "No method reached an error of 30.00%" in winner(found)
    row = method_table(found).rows[-1]
    assert row == ["tiny", "60.00% ± 0.00", "0.50", "not reached", "not reached"]


def test_what_all_reach_in_their_shortest_runs_is_not_known():
    found = standings(
        [
            *method("traditional", "traditional", (0.2, 4), (0.2, 8), seeds=1),
            *method("repeated_random", "repeated_random", (0.2, 4), seeds=1),
            *method("ledger", "ledger_backprop", (0.2, 3), seeds=1),
        ]
    )
    assert [row[-1] for row in method_table(found).rows] == ["baseline", "not known", "not known"]
    assert "ledger and plain training reached an error of 20.40%" in winner(found)
    assert "Run more lengths" in winner(found)
    assert "ledger reached it in its shortest run, as plain training did" in saved(found)


def test_seconds_are_compared_as_compute_is():
    plain = [arm(f"traditional, {e}", "traditional", error, e, seconds=10 * e) for e, error in ((2, 0.4), (8, 0.2))]
    timed = [arm(f"sb, {e}", "top_k", error, e, seconds=15 * e) for e, error in ((2, 0.4), (4, 0.2))]
    arms = [*plain, *timed]
    found, clock = standings(arms), standings(arms, seconds=True)
    assert clock.others[0].plain["lossless"].multiple.value == pytest.approx(4 / 3, rel=0.05)
    assert (found.unit, clock.unit) == ("epochs of compute", "seconds")
    assert "seconds" in arms_table(arms, found.targets).heading
    untimed = [*arms, arm("u", "selective_backprop", 0.2, 4)]
    assert "seconds" not in arms_table(untimed, found.targets).heading
    assert arms_table(arms, {}).heading == ["method", "error", "compute", "seconds", "seeds"], "without plain training"
    assert [row[-1] for row in arms_table(arms, found.targets).rows] == ["no", "yes", "no", "yes"], "lossless"


def test_the_savings_in_everyday_words():
    ledger = method("ledger", "ledger_backprop", (0.4, 1), (0.2, 6))
    random = method("repeated_random", "repeated_random", (0.4, 2), (0.2, 8))
    found = standings([*PLAIN, *ledger, *random, arm("sb", "selective_backprop", 0.3, 2)])
    words = saved(found)
    assert words.startswith("Compared with plain training, for its error of 20.00%: ")
    # Within 2% of 0.2, on lines of error against log compute: 8 / 2^0.04 epochs and 6 / 6^0.02.
    assert "ledger needed 26% less compute" in words
    assert "sb did not reach it" in words and "random subsets needed as much compute" in words
    assert saved(standings(PLAIN)) == "" == saved(standings(ledger))


def test_the_savings_are_those_at_the_middle_where_nobody_got_to_the_best():
    found = standings([*PLAIN, *RANDOM, *LEDGER[:2]])
    words = saved(found)
    assert words.startswith("Compared with plain training, for an error of 30.00%, as no other method got to 20.00%: ")
    assert "ledger needed 50% less compute" in words and "random subsets did not reach it" in words
