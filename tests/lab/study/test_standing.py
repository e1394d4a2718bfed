"""Who won, in numbers and in words, on hand-made arms."""

import pytest

from selective_backprop.lab.study.frontier import Bound, Budget, Verdict
from selective_backprop.lab.study.standing import LabelledRuns, alerts, cheapest_lossless, standings, winner


def arm(label, method, error, cost, seeds=5, spread=0.0, seconds=None):
    """Runs whose errors lie around one value, and whose costs are the same."""
    errors = tuple(error + spread * (i - (seeds - 1) / 2) for i in range(seeds))
    clock = None if seconds is None else Budget(errors, (seconds,) * seeds)
    return LabelledRuns(label, method, Budget(errors, (cost,) * seeds), clock)


PLAIN = [arm(f"traditional, {e} epochs", "traditional", error, e) for e, error in ((2, 0.4), (4, 0.3), (8, 0.2))]
RANDOM = [arm(f"random, {e}", "repeated_random", error, e) for e, error in ((2, 0.38), (4, 0.29))]


def by_label(found):
    return {standing.label: standing for standing in found}


def test_a_method_that_beats_both_wins():
    found = standings([*PLAIN, *RANDOM, arm("ledger", "ledger_backprop", 0.2, 4)])
    ledger = by_label(found)["ledger"]
    assert ledger.plain.multiple.value == pytest.approx(2.0)
    assert ledger.random.multiple.value == pytest.approx(2.0)  # random subsets of everything are plain training
    assert ledger.lossless and ledger.verdict is Verdict.BETTER
    assert winner(found).startswith("**ledger** wins with an error of")
    assert "plain training needs **2.00x (2.00 to 2.00) as much compute**" in winner(found)
    assert alerts(found) == []


def test_plain_training_is_named_where_it_is_not_beaten():
    found = standings([*PLAIN, *RANDOM[:1], arm("sb", "selective_backprop", 0.3, 5)])
    assert by_label(found)["sb"].plain.multiple.value == pytest.approx(4 / 5)
    assert by_label(found)["sb"].verdict is Verdict.WORSE
    assert not by_label(found)["sb"].lossless
    assert "**Random subsets** win" in winner(found)  # 0.38 at 2, where plain training has 0.4
    assert "No method is told apart from random subsets for the better. The closest is sb" in winner(found)
    slower = [arm("random, 2", "repeated_random", 0.41, 2)]
    assert winner(standings([*PLAIN, *slower, arm("sb", "selective_backprop", 0.3, 5)])).startswith(
        "**Plain training is not beaten.**"
    )


def test_random_subsets_that_do_as_well_are_told():
    as_good = [*RANDOM, arm("random, 3", "repeated_random", 0.25, 3)]
    found = standings([*PLAIN, *as_good, arm("ledger", "ledger_backprop", 0.25, 3)])
    assert by_label(found)["ledger"].verdict is Verdict.SAME
    assert "Random subsets do as well as ledger." in alerts(found)
    assert winner(found).startswith("**Random subsets** win")
    dearer = standings([*PLAIN, *as_good, arm("sb", "selective_backprop", 0.25, 3.5)])
    assert by_label(dearer)["sb"].plain.multiple.value > 1
    assert "Random subsets do better than sb." in alerts(dearer)


def test_seeds_that_overlap_are_not_told_apart():
    spread = [arm(f"traditional, {e}", "traditional", error, e, spread=0.1) for e, error in ((2, 0.4), (8, 0.3))]
    found = standings([*spread, *RANDOM, arm("sb", "selective_backprop", 0.34, 4, spread=0.1)])
    assert by_label(found)["sb"].verdict is Verdict.SAME


def test_without_baselines_nothing_is_claimed():
    alone = standings([arm("ledger", "ledger_backprop", 0.2, 4)])
    assert alone[0].plain is None and alone[0].lossless is None and alone[0].verdict is Verdict.NOT_CHECKED
    assert winner(alone) == "Nothing can be said: plain training was not run."
    assert alerts(alone)[0] == "Plain training was not run: no method can be judged."
    unchecked = standings([*PLAIN, arm("ledger", "ledger_backprop", 0.2, 4)])
    assert "Random subsets were not run, so nobody knows" in winner(unchecked)
    assert unchecked[-1].verdict is Verdict.NOT_CHECKED


def test_alerts_name_one_budget_and_few_seeds():
    one = standings(
        [arm("traditional", "traditional", 0.2, 8, seeds=2), arm("sb", "selective_backprop", 0.2, 4, seeds=2)]
    )
    text = " ".join(alerts(one))
    assert "at one budget only" in text and "2 seeds only" in text and "Random subsets were not run" in text
    single = standings([arm("traditional", "traditional", 0.2, 8, seeds=1), arm("sb", "selective_backprop", 0.2, 4, 1)])
    assert "1 seed only: differences may be chance." in alerts(single)


def test_a_single_seed_among_several_is_left_out_of_the_frontier():
    lonely = arm("traditional, 3 epochs", "traditional", 0.1, 3, seeds=1)
    found = standings([*PLAIN, lonely, *RANDOM, arm("ledger", "ledger_backprop", 0.2, 4)])
    assert by_label(found)["ledger"].plain.low is not None
    assert by_label(found)["ledger"].plain.multiple.value == pytest.approx(2.0)
    assert alerts(found)[0] == "One seed only, so not part of the frontier: traditional, 3 epochs."


def test_bounds_that_tell_nothing_are_not_counted_for_or_against():
    short = [arm("random, 2", "repeated_random", 0.38, 2)]
    found = standings([*PLAIN, *short, arm("ledger", "ledger_backprop", 0.2, 4), arm("tiny", "top_k", 0.6, 0.5)])
    assert by_label(found)["ledger"].random.multiple.bound is Bound.EXACT  # plain training is the random end
    assert by_label(found)["tiny"].random.multiple.bound is Bound.LESS  # than 4x: nobody knows
    assert by_label(found)["tiny"].verdict is Verdict.NOT_CHECKED
    assert not any("do as well" in sentence for sentence in alerts(found))
    lonely = standings([*PLAIN, *RANDOM[1:], arm("tiny", "top_k", 0.6, 0.5)])
    assert "No method can be compared" in winner(standings([*PLAIN, arm("tiny", "top_k", 0.6, 0.5)]))
    assert "tiny" not in winner(lonely)


def test_the_best_error_has_its_own_winner():
    found = standings([*PLAIN, *RANDOM, arm("infobatch", "infobatch", 0.2, 9)])
    assert "least compute by **plain training**: 20.00% ± 0.00 with 8.00 epochs; infobatch needs 9.00" in (
        cheapest_lossless(found)
    )
    cheaper = standings([*PLAIN, *RANDOM, arm("ledger", "ledger_backprop", 0.2, 4)])
    assert "by **ledger**: 20.00% ± 0.00 with 4.00 epochs, plain training 8.00." in cheapest_lossless(cheaper)
    nobody = standings([*PLAIN, arm("sb", "selective_backprop", 0.3, 2)])
    assert cheapest_lossless(nobody).endswith("; no method reaches it.")
    assert cheapest_lossless(standings([arm("sb", "selective_backprop", 0.3, 2)])) == ""


def test_random_subsets_that_win_here_and_lose_there_are_no_winner():
    mixed = [arm("random, 2", "repeated_random", 0.35, 2), arm("random, 8", "repeated_random", 0.3, 8)]
    assert "Random subsets** win" not in winner(standings([*PLAIN, *mixed, arm("sb", "selective_backprop", 0.3, 5)]))


def test_seconds_count_only_where_the_clock_was_undisturbed():
    plain = [arm(f"t{e}", "traditional", error, e, seconds=10 * e) for e, error in ((2, 0.4), (8, 0.2))]
    timed = arm("sb", "selective_backprop", 0.2, 4, seconds=60)
    found = by_label(standings([*plain, timed, arm("untimed", "selective_backprop", 0.2, 4)]))
    assert found["sb"].seconds.multiple.value == pytest.approx(80 / 60)
    assert found["untimed"].seconds is None and found["untimed"].plain is not None
