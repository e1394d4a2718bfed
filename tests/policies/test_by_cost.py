"""Score per cost, budgets, and the fit of costs to measured steps."""

import pytest
import torch

from selective_backprop.policies import BudgetPolicy, CostFit, CostPolicy, LossSharePolicy, PercentilePolicy, TopKPolicy
from selective_backprop.policies.by_cost import strata_of
from selective_backprop.testing import check_policy

TOKENS = (0, 1, 0)
LENGTHS = torch.randint(4, 300, (600,), generator=torch.Generator().manual_seed(0))
SCORES = torch.rand(600, generator=torch.Generator().manual_seed(1)) * 3
MOMENTS = (len(LENGTHS), int(LENGTHS.sum()), int(LENGTHS.square().sum()))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def budget(**options):
    return BudgetPolicy(**{"fit": CostFit(TOKENS), "moments": MOMENTS, **options})


@pytest.mark.parametrize("kind", [TopKPolicy, PercentilePolicy])
def test_policies_by_cost_keep_their_promises(kind):
    check_policy(lambda: CostPolicy(kind(selectivity=0.4), fit=CostFit()))


@pytest.mark.parametrize("soft", [False, True])
def test_budgets_keep_their_promises(soft):
    check_policy(lambda: budget(moments=(48, 48, 48), tokens=20, soft=soft))


# ---- the fit


def measured(fit, true, lengths, noise=0.0, size=8):
    draws = generator(3)
    for length in lengths:
        batch = torch.randint(1, int(length) + 1, (size,), generator=draws)
        batch[0] = length  # the longest decides, because the others are padded
        seconds = size * (true[0] + true[1] * length + true[2] * length**2)
        fit.observe(batch, seconds * (1 + noise * float(torch.randn((), generator=draws))))
    fit.exchange(lambda numbers: [numbers])
    return fit


@pytest.mark.parametrize("true", [(2e-3, 3e-5, 4e-8), (0, 3e-5, 4e-8), (2e-3, 3e-5, 0), (0, 1e-5, 0), (2e-3, 0, 0)])
def test_the_fit_finds_the_coefficients_that_made_the_seconds(true):
    fit = measured(CostFit(), true, torch.randint(10, 1000, (400,), generator=generator()).tolist())
    lengths = torch.tensor([10.0, 200.0, 1000.0], dtype=torch.float64)
    expected = true[0] + true[1] * lengths + true[2] * lengths**2
    assert torch.allclose(fit.costs(lengths), expected, rtol=1e-6)
    assert all(value >= 0 for value in fit.known)


def test_noise_moves_the_fit_only_a_little():
    fit = measured(CostFit(), (1e-3, 2e-5, 1e-8), torch.randint(10, 800, (500,), generator=generator()).tolist(), 0.1)
    expected = 1e-3 + 2e-5 * 400 + 1e-8 * 400**2
    assert abs(float(fit.costs(torch.tensor([400]))) / expected - 1) < 0.03  # 500 steps, 10% noise


def test_until_enough_steps_are_measured_an_example_costs_its_tokens():
    fit = measured(CostFit(), (1.0, 0, 0), [100] * 7)
    assert fit.known is None and fit.costs(torch.tensor([7, 70])).tolist() == [7, 70]
    assert measured(fit, (1.0, 0, 0), [100]).known is not None


def test_steps_of_one_length_tell_one_coefficient():
    fit = measured(CostFit(), (1e-3, 1e-5, 0), [100] * 50)
    assert fit.known == (0, pytest.approx(2e-5), 0)


def test_a_pause_does_not_count():
    fit = measured(CostFit(), (0, 1e-5, 0), [50, 100] * 20)
    before = fit.known
    fit.observe(torch.tensor([100]), seconds=60.0)
    fit.observe(torch.tensor([100]), seconds=float("nan"))
    fit.exchange(lambda numbers: [numbers])
    assert fit.known == before


def test_ranks_that_measured_different_steps_have_the_same_fit():
    fits = [CostFit(), CostFit()]
    for fit, speed in zip(fits, (1e-5, 3e-5), strict=True):
        for length in (50, 100) * 10:
            fit.observe(torch.full((4,), length), seconds=4 * speed * length)
    sent = []
    for fit in fits:
        fit.exchange(lambda numbers: sent.append(numbers) or [numbers])
    fits = [CostFit(), CostFit()]
    for fit in fits:
        fit.exchange(lambda numbers: sent)
    assert fits[0].known == fits[1].known == (0, pytest.approx(2e-5), 0)


def test_a_saved_fit_goes_on_where_it_was():
    fit = measured(CostFit(), (1e-3, 1e-5, 0), [50, 100] * 20)
    fit.observe(torch.tensor([70]), seconds=0.01)
    other = CostFit()
    other.load_state_dict(fit.state_dict())
    for one in (fit, other):
        one.exchange(lambda numbers: [numbers])
    assert one.known == fit.known


# ---- selection


def test_within_a_stratum_the_cheaper_of_two_equal_scores_wins():
    policy = CostPolicy(TopKPolicy(selectivity=0.5), fit=CostFit(TOKENS))
    lengths = torch.tensor([16, 31, 17, 30])
    assert policy.select_in_groups(torch.ones(4), generator(), lengths).positions.tolist() == [0, 2]


def test_short_texts_do_not_crowd_out_long_ones():
    kept = {}
    for ratio in (2.0, float("inf")):
        policy = CostPolicy(TopKPolicy(selectivity=0.25), fit=CostFit(TOKENS), ratio=ratio)
        kept[ratio] = LENGTHS[policy.select_in_groups(SCORES, generator(), LENGTHS).positions]
    strata = strata_of(LENGTHS, 2.0)
    counts = torch.bincount(strata_of(kept[2.0], 2.0), minlength=int(strata.max()) + 1)
    for number, (chosen, all_) in enumerate(zip(counts, torch.bincount(strata), strict=True)):
        assert abs(int(chosen) - 0.25 * int(all_)) <= 1, f"stratum {number} has its share"
    assert kept[float("inf")].max() < kept[2.0].max(), "without strata the long ones are left out"


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("soft", [False, True])
def test_the_expected_cost_is_the_budget_in_every_stratum(share, soft):
    policy = budget(tokens=share * int(LENGTHS.sum()), soft=soft)
    selection = policy.select_in_groups(SCORES, generator(), LENGTHS)
    strata = strata_of(LENGTHS, 2.0)
    for number in strata.unique():
        rows = strata == number
        spent = float(selection.probabilities[rows] @ LENGTHS[rows].double())
        assert spent == pytest.approx(share * float(LENGTHS[rows].sum()), rel=1e-6)
    spent = float(LENGTHS[selection.positions].sum())
    assert abs(spent / (share * float(LENGTHS.sum())) - 1) < 0.15  # one draw of 600


def test_many_small_batches_spend_the_budget_too():
    policy, draws = budget(tokens=0.3 * int(LENGTHS.sum())), generator(5)
    spent = 0
    for rows in torch.arange(600).split(24):
        selection = policy.select_in_groups(SCORES[rows], draws, LENGTHS[rows])
        spent += int(LENGTHS[rows][selection.positions].sum())
    assert abs(spent / (0.3 * int(LENGTHS.sum())) - 1) < 0.1  # 25 batches, seed 5


def test_hard_budgets_take_the_highest_scores_per_cost():
    policy = budget(tokens=0.5 * int(LENGTHS.sum()), ratio=float("inf"))
    selection = policy.select_in_groups(SCORES, generator(), LENGTHS)
    per_token = SCORES / LENGTHS
    left = torch.ones(600, dtype=torch.bool)
    left[selection.positions] = False
    # Only the one example on the border is decided by chance.
    assert (per_token[selection.positions].min() > per_token[left].max()) or selection.probabilities.frac().any()
    certain = selection.probabilities == 1
    assert per_token[certain].min() >= per_token[~certain].max() - 1e-6
    assert int((selection.probabilities.frac() > 0).sum()) <= 1


def test_a_budget_of_seconds_keeps_all_until_the_fit_is_known():
    fit = CostFit()
    policy = budget(fit=fit, seconds=0.25 * 1e-5 * int(LENGTHS.sum()))
    assert policy.cost_share == 1
    assert len(policy.select_in_groups(SCORES, generator(), LENGTHS).positions) == 600
    measured(fit, (0, 1e-5, 0), [50, 100] * 20)
    assert policy.cost_share == pytest.approx(0.25)


def test_a_budget_that_pays_for_all_keeps_all():
    selection = budget(tokens=10 * int(LENGTHS.sum())).select_in_groups(SCORES, generator(), LENGTHS)
    assert len(selection.positions) == 600


def test_negative_scores_count_by_their_distance_from_the_smallest():
    policy = CostPolicy(LossSharePolicy(loss_share=0.5), fit=CostFit(TOKENS))
    selection = policy.select_in_groups(torch.tensor([-3.0, -1.0, -2.9, -2.8]), generator(), torch.full((4,), 5))
    assert selection.positions.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tokens": 5, "seconds": 5}, "give one of both"),
        ({}, "give one of both"),
        ({"tokens": 0}, "must be above 0, got 0"),
        ({"seconds": float("nan")}, "must be above 0, got nan"),
        ({"tokens": 5, "ratio": 1.0}, "ratio must be above 1, got 1.0"),
    ],
)
def test_wrong_budgets_are_refused(options, error):
    with pytest.raises(ValueError, match=error):
        budget(**options)


@pytest.mark.parametrize("coefficients", [(1, 2), (0, 0, 0), (1, -1, 0), (1, float("nan"), 0)])
def test_wrong_coefficients_are_refused(coefficients):
    with pytest.raises(ValueError, match="coefficients must"):
        CostFit(coefficients)
