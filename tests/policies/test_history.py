import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_backprop.policies import LossHistory
from tests import reference

losses = st.sampled_from([0.0, 0.125, 0.5, 1.0, 1.5, 2.0, 7.0, 100.0])


@settings(max_examples=150)
@given(st.integers(1, 40), st.lists(st.lists(losses, min_size=1, max_size=17), min_size=1, max_size=12))
def test_rank_equals_the_reference(size, batches):
    history, seen = LossHistory(size), []
    for batch in batches:
        expected = reference.batched_percentiles(seen[-size:], batch, size)
        assert history.rank(torch.tensor(batch)).tolist() == pytest.approx(expected)
        seen += batch
        assert history.losses.tolist() == pytest.approx(seen[-size:])


def test_long_history_of_small_batches_equals_the_reference():
    history, seen = LossHistory(500), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        batch = (torch.rand(7, generator=generator) * 50).round() / 10
        expected = reference.batched_percentiles(seen[-500:], batch.tolist(), 500)
        assert history.rank(batch).tolist() == pytest.approx(expected)
        seen += batch.tolist()


@pytest.mark.parametrize("size", [10, 500, 5000])
def test_counts_of_smaller_and_of_not_larger_losses(size):
    history, seen = LossHistory(size), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        batch = (torch.rand(12, generator=generator) * 50).round()
        seen = (seen + batch.tolist())[-max(size, 12) :]
        below, up_to, total = history.counts(batch)
        assert total == len(seen)
        assert below.tolist() == [sum(x < loss for x in seen) for loss in batch.tolist()]
        assert up_to.tolist() == [sum(x <= loss for x in seen) for loss in batch.tolist()]


def test_one_at_a_time_is_algorithm_2():
    history, algorithm = LossHistory(32), reference.Algorithm2(32, beta=2)
    for loss in torch.randn(200).exp().tolist():
        got = float(history.rank(torch.tensor([loss]))) ** 2
        assert got == pytest.approx(algorithm.probability(float(torch.tensor(loss))))


def test_the_largest_has_percentile_1_and_ties_share_their_mean_rank():
    history = LossHistory(8)
    assert history.rank(torch.tensor([5.0, 50.0, 500.0])).tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert LossHistory(8).rank(torch.full((4,), 3.0)).tolist() == [0.625] * 4


def test_state_goes_on_exactly():
    history, again = LossHistory(20), LossHistory(20)
    for _ in range(7):
        history.rank(torch.rand(9))
    again.load_state_dict(history.state_dict())
    for _ in range(7):
        batch = torch.rand(9)
        assert torch.equal(history.rank(batch), again.rank(batch))


def test_bad_input():
    with pytest.raises(ValueError, match="history_size"):
        LossHistory(0)
    with pytest.raises(ValueError, match="9 losses"):
        LossHistory(4).load_state_dict({"losses": torch.ones(9)})
