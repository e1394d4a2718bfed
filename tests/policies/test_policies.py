import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_backprop.policies import (
    ExpectedPolicy,
    GroupedPolicy,
    PercentilePolicy,
    TopKPolicy,
    UniformPolicy,
)
from tests import reference

THIRD = 1 / 3


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


def test_the_paper_s_rule_is_algorithm_2_with_the_batch_added_first():
    policy, seen = PercentilePolicy(beta=2, history_size=50, paper=True), []
    for _ in range(12):
        batch = (torch.rand(9) * 20).round()
        expected = [u**2 for u in reference.batched_percentiles(seen[-50:], batch.tolist(), 50)]
        assert policy.select(batch, generator()).probabilities.tolist() == pytest.approx(expected)
        seen += batch.tolist()
    assert PercentilePolicy(beta=2, paper=True).history.size == 1024


LOSSES = st.sampled_from([0.0, 0.125, 0.5, 1.0, 7.0, 100.0])


@settings(max_examples=40)
@given(
    st.integers(1, 20),
    st.sampled_from([0.5, 2.0, 9.0]),
    st.lists(LOSSES, min_size=1),
    st.data(),
)
def test_chances_equal_the_reference(size, beta, batch, data):
    """Of the first batch, and of the next, which makes up for what coins kept too few or too many of the first."""
    policy = PercentilePolicy(beta=beta, history_size=size)
    expected = reference.keep_chances([], batch, size, beta)
    first = policy.select(torch.tensor(batch), generator())
    assert first.probabilities.tolist() == pytest.approx(expected, abs=1e-3)
    later = data.draw(st.lists(LOSSES, min_size=1, max_size=25))
    # What was kept too few or too many of the first is made up for over the next 32.
    selectivity, kept = policy.selectivity, len(first.positions)
    share = selectivity + (selectivity * len(batch) - kept) / 32
    if selectivity / 64 < share < 1 - (1 - selectivity) / 64:
        expected = reference.keep_chances(batch[-size:], later, size, 1 / share - 1)
        assert policy.select(torch.tensor(later), generator()).probabilities.tolist() == pytest.approx(
            expected, abs=1e-3
        )


def falling(kind, num_candidates, batch_size, seed=0):
    """Batches of losses: stationary, or falling, or rising, by many times their spread."""
    draw = generator(seed)
    for i in range(num_candidates // batch_size):
        done, z = i * batch_size / num_candidates, torch.randn(batch_size, generator=draw)
        yield {
            "still": z.exp(),
            "falling": (z - 6 * done).exp(),
            "falling fast": (z / 10 - 4 * done).exp(),
            "falling at first": (z / 2).exp() * (0.1 + 3 * math.exp(-8 * done)),
            "rising": (z / 3 + 3 * done).exp(),
            "equal": torch.ones(batch_size),
            "zero but a few": (z > 2).float(),
            "zero in the end": (z + 1 - 3 * done).clamp(min=0),
        }[kind]


def shares_of_epochs(policy, batches, num_epochs=2, groups=None):
    """What was selected of each of equally long parts; with groups, numbers are given to candidates in turn."""
    coins, batches, kept = generator(9), list(batches), []
    for epoch in range(num_epochs):
        part = batches[epoch * len(batches) // num_epochs : (epoch + 1) * len(batches) // num_epochs]
        if groups is None:
            selections = [policy.select(batch, coins) for batch in part]
        else:
            numbers = torch.arange(len(part[0])) % groups
            selections = [policy.select_in_groups(batch, coins, numbers) for batch in part]
        kept.append(sum(len(selection.positions) for selection in selections) / sum(map(len, part)))
    return kept


KINDS = ["still", "falling", "falling fast", "falling at first", "rising", "equal", "zero but a few", "zero in the end"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [8, 32, 128])
@pytest.mark.parametrize("options", [{}, {"fixed_size": True}, {"unbiased": True}], ids=str)
def test_each_epoch_keeps_what_was_asked_for(kind, batch_size, options):
    """Within 10%, from the first epoch of 640 candidates on, while losses fall by many times their spread."""
    for selectivity in (THIRD, 0.25):
        policy = PercentilePolicy(selectivity=selectivity, **options)
        shares = shares_of_epochs(policy, falling(kind, 1280, batch_size))
        assert shares == pytest.approx([selectivity] * 2, rel=0.1)


def test_the_paper_s_rule_does_not():
    """The test above can fail."""
    policy = PercentilePolicy(selectivity=THIRD, paper=True)
    assert max(shares_of_epochs(policy, falling("falling", 1280, 32))) < 0.25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("classes", "fixed_size"), [(4, False), (4, True), (20, True), (64, True)])
def test_each_epoch_keeps_what_was_asked_for_with_classes(kind, classes, fixed_size):
    """At batch 32 a class has 8 candidates of each batch, or one or two, or one."""
    policy = GroupedPolicy(PercentilePolicy(selectivity=0.25, fixed_size=fixed_size))
    shares = shares_of_epochs(policy, falling(kind, 2560, 32), groups=classes)
    assert shares == pytest.approx([0.25] * 2, rel=0.01 if fixed_size else 0.1)


@pytest.mark.parametrize("inner", [PercentilePolicy(selectivity=0.3, fixed_size=True), TopKPolicy(selectivity=0.3)])
def test_each_class_gets_its_part_of_fixed_sizes(inner):
    policy, coins = GroupedPolicy(inner), generator()
    classes = torch.tensor([0] * 10 + [1] * 5 + [2])
    kept = torch.zeros(3)
    for _ in range(600):
        positions = policy.select_in_groups(torch.rand(16, generator=coins), coins, classes).positions
        kept += torch.bincount(classes[positions], minlength=3)
    assert kept.tolist() == pytest.approx([1800, 900, 180], abs=1), "fractions of an example are carried over"


@pytest.mark.parametrize(
    "make", [lambda s: PercentilePolicy(selectivity=s, fixed_size=True), lambda s: TopKPolicy(selectivity=s)]
)
@pytest.mark.parametrize("selectivity", [0.01, 0.1, THIRD, 0.5, 0.77, 1])
@pytest.mark.parametrize("size", [1, 3, 8, 40])
def test_fixed_sizes_add_up_to_the_share(make, selectivity, size):
    policy, coins = make(selectivity), generator()
    total = 0
    for batch in range(1, 61):
        kept = len(policy.select(torch.rand(size, generator=coins), coins).positions)
        total += kept
        assert abs(kept - selectivity * size) < 1
        assert abs(total - selectivity * size * batch) <= 0.5 + 1e-6


def test_the_state_has_what_is_owed():
    for make in (
        lambda: PercentilePolicy(selectivity=THIRD),
        lambda: PercentilePolicy(selectivity=THIRD, fixed_size=True),
        lambda: TopKPolicy(selectivity=THIRD),
        lambda: GroupedPolicy(PercentilePolicy(selectivity=THIRD, fixed_size=True)),
        lambda: ExpectedPolicy(selectivity=THIRD),
    ):
        policy, again = make(), make()
        for i in range(7):
            policy.select(torch.rand(5), generator(i))
        again.load_state_dict(copy.deepcopy(policy.state_dict()))
        for i in range(7):
            batch = torch.rand(5)
            one, other = policy.select(batch, generator(i)), again.select(batch, generator(i))
            assert torch.equal(one.positions, other.positions) and torch.equal(one.probabilities, other.probabilities)


@pytest.mark.parametrize("kind", KINDS)
def test_expected_weights_have_a_mean_of_1(kind):
    policy = ExpectedPolicy(selectivity=THIRD)
    weights = [policy.select(batch, generator()).weights for batch in falling(kind, 1280, 8)]
    assert float(torch.cat(weights).mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("history_size", [None, 5, 1024, 5000])
def test_only_the_order_of_losses_matters(history_size):
    """Monotone transformations change nothing; the highest has the highest chance; equals have equal chances."""
    straight, transformed = (PercentilePolicy(selectivity=0.2, history_size=history_size) for _ in range(2))
    for i in range(40):
        batch = (torch.rand(12) * 20).round()
        chance = straight.select(batch, generator(i)).probabilities
        assert torch.equal(chance, transformed.select(batch.pow(3) * 1e-3 + 5, generator(i)).probabilities)
        assert bool(((chance > 0) & (chance <= 1)).all())
        order = batch.argsort()
        assert bool(((chance[order].diff() > 0) == (batch[order].diff() > 0)).all())


def test_losses_above_1_and_the_hardest_are_not_lost():
    policy = PercentilePolicy(selectivity=0.1)
    scores = torch.arange(1000.0) * 100
    chance = policy.select(scores, generator()).probabilities
    assert 0.99 < chance[-1] <= 1
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
    assert abs(len(kept) - selectivity * count) <= 0.5
    assert sorted(scores.tolist())[count - len(kept) :] == sorted(scores[kept].tolist())


def test_top_k_decides_ties_by_lot():
    scores = torch.tensor([5.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    selections = [TopKPolicy(selectivity=0.5).select(scores, generator(seed)) for seed in range(50)]
    assert selections[0].probabilities.tolist() == [1, 0.5, 0.5, 0.5, 0.5, 0]
    assert all(s.positions[0] == 0 and 5 not in s.positions for s in selections)
    assert len({tuple(s.positions.tolist()) for s in selections}) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PercentilePolicy(), "selectivity or beta"),
        (lambda: PercentilePolicy(selectivity=0.5, beta=1), "selectivity or beta"),
        (lambda: PercentilePolicy(beta=-1), "beta .* -1"),
        (lambda: PercentilePolicy(selectivity=1.5), "selectivity .* 1.5"),
        (lambda: PercentilePolicy(beta=1, history_size=0), "history_size .* 0"),
        (lambda: PercentilePolicy(beta=1, paper="False"), "paper .* 'False'"),
        (lambda: UniformPolicy(selectivity=0), "selectivity .* 0"),
        (lambda: TopKPolicy(selectivity=-1), "selectivity .* -1"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()
