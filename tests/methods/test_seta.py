"""seta: its groups against a slow reference, its window epoch by epoch, and its share of the data."""

import pytest
import torch

import selective_backprop as sb
from selective_backprop import functional as SF
from tests.helpers import NUM_DIGITS, make_loader, make_model, train


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def slow_groups(values, centers):
    """Lloyd's algorithm, value by value."""
    while True:
        nearest = [min(range(len(centers)), key=lambda i, value=value: abs(value - centers[i])) for value in values]
        members = [[v for v, number in zip(values, nearest, strict=True) if number == i] for i in range(len(centers))]
        means = [sum(of) / len(of) if of else centers[i] for i, of in enumerate(members)]
        if means == pytest.approx(centers, abs=1e-12):
            return nearest
        centers = means


@pytest.mark.parametrize("num_groups", [1, 2, 5, 8])
@pytest.mark.parametrize("shape", ["even", "heavy tail"])
def test_groups_equal_a_slow_reference(num_groups, shape):
    values = torch.rand(200, generator=generator(1)).double()
    values = values if shape == "even" else (8 * values - 6).exp()
    ordered = sorted(values.tolist())
    start = [ordered[int((i + 0.5) / num_groups * 200)] for i in range(num_groups)]
    expected = slow_groups(values.tolist(), start)
    assert SF.groups_of_similar(values, num_groups).tolist() == expected
    assert sorted(set(expected)) == list(range(num_groups))


def test_groups_of_equal_few_and_no_values():
    assert SF.groups_of_similar(torch.full((4,), 0.7), 3).tolist() == [0, 0, 0, 0]
    assert SF.groups_of_similar(torch.tensor([1.0, 1.0, 8.0]), 2).tolist() == [0, 0, 1]
    assert SF.groups_of_similar(torch.tensor([3.0]), 5).unique().numel() == 1
    assert SF.groups_of_similar(torch.empty(0), 5).tolist() == []


def test_the_window_slides_from_easy_to_hard_and_holds_all_groups_at_the_end():
    losses = torch.tensor([0.0, 10.0, 20.0, 30.0]).repeat_interleave(5) + torch.rand(20, generator=generator())
    policy = sb.policies.SlidingWindowPolicy(prune=0, groups=4, window=2, until=0.75)
    windows = []
    for epoch in range(10):
        policy.begin_epoch(epoch, num_epochs=10)
        kept = policy.select(losses, generator()).positions
        windows.append(sorted({int(position) // 5 for position in kept}))
        assert len(kept) == 5 * len(windows[-1]), "whole groups"
    assert windows == [[0, 1], [1, 2], [2, 3]] * 2 + [[0, 1]] + [[0, 1, 2, 3]] * 3


def test_equal_losses_are_all_in_the_window_wherever_it_is():
    policy = sb.policies.SlidingWindowPolicy(prune=0, groups=4, window=1, until=1)
    for epoch in range(4):
        policy.begin_epoch(epoch, num_epochs=None)
        assert len(policy.select(torch.full((6,), 0.5), generator()).positions) == 6


def test_a_random_share_is_left_out_and_each_example_of_the_window_has_the_same_chance():
    losses = torch.tensor([0.0, 10.0]).repeat_interleave(30)
    policy = sb.policies.SlidingWindowPolicy(prune=0.4, groups=2, window=1)
    policy.begin_epoch(1, num_epochs=100)
    draws, counts = generator(3), torch.zeros(60)
    for _ in range(500):
        selection = policy.select(losses, draws)
        counts[selection.positions] += 1
    assert counts[:30].sum() == 0
    # Five standard deviations of a coin.
    assert (counts[30:] / 500 - 0.6).abs().max() < 5 * (0.6 * 0.4 / 500) ** 0.5
    assert selection.probabilities.tolist() == pytest.approx([0] * 30 + [0.6] * 30)


def test_training_follows_the_window_by_epochs_of_the_run():
    """The first epoch trains on everything, and the last leaves out the random share alone."""
    model = make_model()
    loader = make_loader(sb.methods.seta(prune=0.25, groups=4, window=2), model=model, num_epochs=8)
    skipped = []
    for epoch in range(1, 9):
        before = loader.stats.skipped_before_loading
        train(loader, model, epoch)
        skipped.append(loader.stats.skipped_before_loading - before)
    assert skipped[0] == 0, "no losses are known"
    assert all(count >= 0.25 * NUM_DIGITS - loader.batch_size for count in skipped[1:])
    assert abs(skipped[7] - 0.25 * NUM_DIGITS) <= loader.batch_size, "only the random share at the end"
    assert loader.stats.scored == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune": 1.0}, r"prune must be in \[0, 1\), got 1\.0"),
        ({"prune": float("nan")}, r"prune must be in \[0, 1\), got nan"),
        ({"groups": 0}, "groups must be a whole number >= 1, got 0"),
        ({"window": 2.5}, r"window must be a whole number >= 1, got 2\.5"),
        ({"window": 6}, "window must be at most the number of groups, got a window of 6 with 5 groups"),
        ({"until": 0}, r"until must be a fraction of the run in \(0, 1\], got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        sb.methods.seta(**options)


def test_the_length_of_the_run_must_be_known_unless_the_window_never_ends():
    with pytest.raises(ValueError, match="seta selects in a window of training: pass num_epochs="):
        make_loader(sb.methods.seta())
    make_loader(sb.methods.seta(until=1))
    make_loader(sb.methods.seta(groups=3, window=3))
