"""Which rollouts are backpropagated."""

import itertools

import pytest
import torch

from selective_backprop import rl
from selective_backprop.rl.rollouts import most_varied


@pytest.mark.parametrize("m", [2, 3, 5, 6])
def test_the_m_with_the_largest_variance_are_those_of_a_search_over_all(m):
    rewards = torch.randn(20, 6, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    for row, chosen in zip(rewards, most_varied(rewards, m), strict=True):
        best = max(row[list(places)].var(correction=0) for places in itertools.combinations(range(6), m))
        assert int(chosen.sum()) == m
        assert row[chosen].var(correction=0).item() == pytest.approx(best.item())


def test_of_ones_and_zeros_both_kinds_are_kept():
    rewards = torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1, 1]])
    kept = rl.downsample(4).keep(rewards)
    assert [sorted(row[mask].tolist()) for row, mask in zip(rewards, kept, strict=True)] == [[0, 1, 1, 1], [0, 0, 1, 1]]


def test_groups_with_equal_rewards_are_left_out():
    rewards = torch.tensor([[0.5, 0.5, 0.5], [0.1, 0.1, 0.1 + 1e-9], [0, 0, 1]])
    assert rl.drop_equal().keep(rewards).any(1).tolist() == [False, False, True]
    assert rl.drop_equal().keep(rewards)[2].all()


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="m must be a whole number >= 2"):
        rl.downsample(1)
    with pytest.raises(ValueError, match="only 4 are generated"):
        rl.downsample(5).check(4)
    rl.downsample(4).check(4)


@pytest.mark.parametrize("rewards", [torch.ones(8), torch.ones(2, 2, 2)])
def test_rewards_without_a_row_per_prompt_are_refused(rewards):
    with pytest.raises(ValueError, match=r"one row per prompt.*view\(-1, G\)"):
        rl.drop_equal().keep(rewards)
