import math

import pytest
import torch

from selective_backprop import PercentilePolicy, TopKPolicy, UniformPolicy
from tests import reference


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_beta_0_keeps_all():
    policy = PercentilePolicy(beta=0)
    for _ in range(20):
        assert len(policy.select(torch.randn(64), generator()).positions) == 64


def test_selectivity_is_reached():
    # 400 batches of 128: the standard deviation of the share is at most sqrt(0.25 / 51,200) = 0.0022.
    for selectivity in (0.25, 1 / 3, 0.5, 0.9):
        policy, coins = PercentilePolicy(selectivity=selectivity), generator()
        kept = sum(len(policy.select(torch.randn(128).exp(), coins).positions) for _ in range(400))
        assert kept / (400 * 128) == pytest.approx(selectivity, abs=0.011)


def test_probabilities_follow_algorithm_2_with_the_batch_added_first():
    policy, seen = PercentilePolicy(beta=2, history_size=50), []
    for _ in range(12):
        batch = (torch.rand(9) * 20).round()
        expected = [u**2 for u in reference.batched_percentiles(seen[-50:], batch.tolist(), 50)]
        assert policy.select(batch, generator()).probabilities.tolist() == pytest.approx(expected)
        seen += batch.tolist()


def test_losses_above_1_and_the_hardest_are_not_lost():
    policy = PercentilePolicy(selectivity=0.1)
    scores = torch.arange(1000.0) * 100
    chance = policy.select(scores, generator()).probabilities
    assert chance[-1] == 1
    assert bool((chance.diff() > 0).all())


def test_permuting_scores_permutes_what_they_are_selected_with():
    scores, order = torch.rand(50), torch.randperm(50)
    straight = PercentilePolicy(beta=2).select(scores, generator()).probabilities
    permuted = PercentilePolicy(beta=2).select(scores[order], generator()).probabilities
    assert torch.equal(permuted, straight[order])


@pytest.mark.parametrize("count", [1, 7, 30, 100])
@pytest.mark.parametrize("selectivity", [0.01, 0.1, 1 / 3, 0.5, 1])
def test_top_k_keeps_the_highest(count, selectivity):
    scores = torch.randn(count)
    kept = TopKPolicy(selectivity=selectivity).select(scores, generator()).positions
    number = math.ceil(round(selectivity * count, 9))
    assert sorted(scores.tolist())[-number:] == sorted(scores[kept].tolist())


def test_top_k_decides_ties_by_lot():
    scores = torch.tensor([5.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    selections = [TopKPolicy(selectivity=0.5).select(scores, generator(seed)) for seed in range(50)]
    assert selections[0].probabilities.tolist() == [1, 0.5, 0.5, 0.5, 0.5, 0]
    assert all(s.positions[0] == 0 and 5 not in s.positions for s in selections)
    assert len({tuple(s.positions.tolist()) for s in selections}) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PercentilePolicy(), "give either selectivity or beta, got selectivity=None and beta=None"),
        (lambda: PercentilePolicy(selectivity=0.5, beta=1), "give either selectivity or beta"),
        (lambda: PercentilePolicy(beta=-1), "beta must be a number >= 0, got -1"),
        (lambda: PercentilePolicy(selectivity=1.5), r"selectivity must be in \(0, 1\], got 1.5"),
        (lambda: PercentilePolicy(beta=1, history_size=0), "history size must be at least 1, got 0"),
        (lambda: UniformPolicy(selectivity=0), r"selectivity must be in \(0, 1\], got 0"),
        (lambda: TopKPolicy(selectivity=-1), r"selectivity must be in \(0, 1\], got -1"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
