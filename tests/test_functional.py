import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_backprop import functional as SF
from tests import reference


def test_selectivity_and_beta_are_inverse():
    assert [SF.beta_from_selectivity(s) for s in (1, 0.5, 0.25)] == [0, 1, 3]
    assert SF.selectivity_from_beta(SF.beta_from_selectivity(0.33)) == pytest.approx(0.33)


@pytest.mark.parametrize("selectivity", [0, -0.1, 1.01, float("nan")])
def test_selectivity_out_of_range(selectivity):
    with pytest.raises(ValueError, match=r"selectivity must be in \(0, 1\], got"):
        SF.beta_from_selectivity(selectivity)


@pytest.mark.parametrize("beta", [-1, float("inf"), float("nan")])
def test_beta_out_of_range(beta):
    with pytest.raises(ValueError, match="beta must be a number >= 0, got"):
        SF.selectivity_from_beta(beta)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6]), min_size=1, max_size=30))
def test_rank_percentiles_equal_the_reference(values):
    got = SF.rank_percentiles(torch.tensor(values)).tolist()
    assert got == pytest.approx([reference.mean_rank_percentile(values, v) for v in values])


def test_percentile_to_the_beta_averages_to_selectivity():
    # E[u ** beta] = 1 / (beta + 1); the sum over 2,000 ranks differs from the integral by at most 1 / 2,000.
    for selectivity in (0.25, 1 / 3, 0.5):
        u = SF.rank_percentiles(torch.randn(2000))
        mean = SF.keep_probability(u, SF.beta_from_selectivity(selectivity)).mean()
        assert mean == pytest.approx(selectivity, abs=1 / 2000)


def test_coins_at_their_limits():
    assert SF.flip_coins(torch.ones(1000)).tolist() == list(range(1000))
    assert SF.flip_coins(torch.zeros(1000)).tolist() == []


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=25), st.data())
def test_fixed_size_probabilities_equal_the_reference(weights, data):
    weights = [0.0 if w < 1e-6 else w for w in weights]
    positive = sum(w > 0 for w in weights)
    total = data.draw(st.integers(0, positive))
    got = SF.fixed_size_probabilities(torch.tensor(weights, dtype=torch.float64), total)
    assert float(got.sum()) == pytest.approx(total, abs=1e-9)
    if total:
        assert got.tolist() == pytest.approx(reference.capped_shares(weights, total), abs=1e-6)


def test_fixed_size_needs_enough_candidates():
    with pytest.raises(ValueError, match="3 of 2"):
        SF.fixed_size_probabilities(torch.tensor([0.5, 0.5, 0.0]), 3)


def test_systematic_sample_has_exact_size_and_inclusion():
    # 20,000 draws: five standard deviations of a frequency are at most 0.018.
    probabilities = SF.fixed_size_probabilities(torch.linspace(0.01, 1, 40) ** 2, 13)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(40)
    for _ in range(20_000):
        positions = SF.systematic_sample(probabilities, generator)
        assert len(positions) == 13
        counts[positions] += 1
    assert torch.allclose(counts.double() / 20_000, probabilities, atol=0.018)


def test_systematic_sample_of_many_does_not_lose_any_to_rounding():
    probabilities = SF.fixed_size_probabilities(torch.rand(1_000_000), 333_333)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        assert len(SF.systematic_sample(probabilities, generator)) == 333_333


def test_systematic_sample_refuses_a_sum_that_is_not_whole():
    with pytest.raises(ValueError, match=r"0\.5"):
        SF.systematic_sample(torch.tensor([0.25, 0.25]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 3.0, 50.0, 1e6]), min_size=1, max_size=40),
    st.sampled_from([0.3, 0.6, 0.95]),
    st.sampled_from([1.0, 2.0, 5.0, 20.0, float("inf")]),
)
def test_a_loss_share_counts_no_loss_for_more_than_the_cap_times_the_mean(values, share, cap):
    number = SF.count_for_loss_share(SF.descending(torch.tensor(values, dtype=torch.float64)), share, cap)
    if max(values) == min(values):
        assert number == len(values)  # nothing is known to be easier
    else:
        assert number == len(reference.hardest_with_loss_share(values, share, cap))
