"""Each method's formula against a slow reference, at its limits, and statistically."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop import functional as SF
from selective_backprop.ledger import Ledger
from tests import reference
from tests.helpers import NUM_DIGITS, digits, make_loader, make_model, train

INPUTS, TARGETS = digits().tensors


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- distance_backprop


def test_distance_is_the_squared_l2_distance_clipped():
    model = nn.Linear(64, 10)
    nn.init.normal_(model.weight, std=3)  # confident enough that some distances are clipped at either end
    loader = make_loader(sb.methods.distance_backprop(minimum=0.2), model=model, loader_options={"shuffle": False})
    for _ in loader:
        pass
    logits = model(INPUTS).tolist()
    distances = [reference.squared_distance(row, int(t)) for row, t in zip(logits, TARGETS, strict=True)]
    assert loader.ledger.score.tolist() == pytest.approx(distances, abs=1e-5)
    chance = loader.policy.select(loader.ledger.score, generator()).probabilities
    assert chance.tolist() == pytest.approx([min(1, max(0.2, d)) for d in distances], abs=1e-5)
    assert {0.2, 1.0} <= set(chance.tolist())


def test_distance_is_the_gradient_of_the_loss_also_of_ignored_targets():
    outputs, targets = torch.randn(4, 3, requires_grad=True), torch.tensor([0, -100, 2, 1])
    F.cross_entropy(outputs, targets, reduction="sum").backward()
    torch.testing.assert_close(SF.softmax_distance(outputs.detach(), targets), outputs.grad.norm(dim=1))


# ---- predicted_selective_backprop


EARLIER = sb.scorers.StoredScorer(sb.scorers.ForwardScorer(), every=3, past_scores=3).needs.columns


def ledger_with(epochs, scores):
    ledger = Ledger(len(scores[0]), EARLIER)
    for epoch, values in zip(epochs, scores, strict=True):
        ledger.record_scores(torch.arange(len(values)), torch.tensor(values), epoch)
    return ledger


def test_exponential_average():
    scorer = sb.scorers.StoredScorer(sb.scorers.ForwardScorer(), every=3, decay=0.5, past_scores=3)
    ids = torch.tensor([0, 1])
    ledger = ledger_with([0, 1, 3], [[8.0, 1.0], [4.0, 1.0], [2.0, 1.0]])
    assert scorer.recall(ids, ledger.rows(ids), 4).tolist() == pytest.approx([(2 + 4 / 2 + 8 / 4) / 1.75, 1])


def test_examples_scored_in_different_epochs_have_their_own_weights():
    scorer = sb.scorers.StoredScorer(sb.scorers.ForwardScorer(), every=3, decay=0.25, past_scores=3)
    ledger = Ledger(4, EARLIER)
    ledger.record_scores(torch.tensor([0, 1]), torch.tensor([3.0, 5.0]), 0)
    ledger.record_scores(torch.tensor([1, 2]), torch.tensor([1.0, 4.0]), 2)
    ids = torch.tensor([2, 1, 0, 3])
    got = scorer.recall(ids, ledger.rows(ids), 3)
    assert got[:3].tolist() == pytest.approx([4, 0.8 * 1 + 0.2 * 5, 3], abs=1e-6)
    assert got[3].isnan()


def test_every_third_epoch_has_selection_passes():
    loader = make_loader(sb.methods.predicted_selective_backprop(0.5, every=3))
    scored = []
    for _ in range(8):
        for _ in loader:
            pass
        scored.append(loader.stats.scored / NUM_DIGITS)
    assert scored == [1, 1, 1, 2, 2, 2, 3, 3]


# ---- kath18


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.1, 2.0, 0.5, 0.0, 7.0]])
def test_variance_reduction_is_kath18s(losses):
    schedule = sb.schedules.VariableStart(threshold=1.0)
    schedule.observe(torch.tensor(losses))
    assert schedule.state_dict()["tau"] == pytest.approx(reference.variance_reduction(losses))


def test_a_step_of_unbiased_kath18_has_the_expected_loss_of_a_plain_step():
    losses, draws = torch.rand(24, generator=generator()) + 0.1, generator()
    policy = sb.methods.kath18(1 / 4, unbiased=True).policy
    selections = [policy.select(losses, draws) for _ in range(4000)]
    assert all(len(selection.positions) == 6 for selection in selections)
    weights = torch.stack([selection.weights for selection in selections])
    steps = (weights * torch.stack([losses[selection.positions] for selection in selections])).mean(1)
    assert steps.mean() == pytest.approx(float(losses.mean()), rel=1e-4), "draws in proportion have no variance"
    assert weights.mean() == pytest.approx(1, abs=0.02), "so an example weighs a quarter per epoch"


def test_kath18_starts_when_losses_are_uneven_enough():
    schedule = sb.kath18(1 / 3).schedule
    even, uneven = torch.rand(64) + 1, torch.cat([torch.zeros(60), torch.ones(4)])
    for _ in range(20):
        schedule.observe(even)
    assert not schedule.is_on(1, 0)
    for _ in range(20):
        schedule.observe(uneven)
    assert schedule.is_on(1, 0)
    for _ in range(40):
        schedule.observe(even)
    assert not schedule.is_on(1, 0)


def test_kath18_makes_no_selection_pass_before_it_starts():
    model = make_model()
    loader = make_loader(sb.kath18(1 / 3, threshold=1e9), model=model)
    train(loader, model, 2)
    assert loader.stats.scored == 16  # the first batch, to find out whether it works
    assert loader.stats.selectivity == 1


# Nine in ten candidates lose 0.02 and one in ten loses 1, so that tau is known: sqrt(E[s ** 2]) / E[s].
FEW_HARD = torch.where(torch.arange(4800) % 10 == 0, 1.0, 0.02)
EXACT_TAU = float(FEW_HARD.square().mean().sqrt() / FEW_HARD.mean())  # 2.685


def itself(outputs, _):
    """The output is the loss: what each example loses is known, and stays as it is without a step."""
    return outputs[:, 0]


def kath18_on_known_losses(method, *, weight=1.0, **options):
    """A loader whose losses are `weight` times FEW_HARD plus 1 - weight, in pools of 96 for batches of 32."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, weight)
    torch.nn.init.constant_(model.bias, 1 - weight)
    data = TensorDataset(FEW_HARD.unsqueeze(1), torch.zeros(len(FEW_HARD)))
    candidates = DataLoader(data, batch_size=96, shuffle=True, generator=torch.Generator().manual_seed(1))
    return sb.SelectiveLoader(candidates, model, itself, method, batch_size=32, **options), model


@pytest.mark.parametrize("with_loader_loss", [True, False])
def test_tau_is_the_exact_one_within_15_percent_and_kath18_stays_on(with_loader_loss):
    """With the drawn examples' losses among the pools', it read 20% less than the exact value here."""
    loader, model = kath18_on_known_losses(sb.kath18(1 / 3))
    taus = []
    for _ in range(4):
        for inputs, targets in loader:
            outputs = model(inputs)
            if with_loader_loss:
                loader.loss(outputs, targets)
            taus.append(loader.schedule.tau)
    taus = torch.tensor(taus[10:])
    assert abs(float(taus.mean()) / EXACT_TAU - 1) < 0.03
    assert float((taus / EXACT_TAU - 1).abs().max()) < 0.15
    assert loader.stats.scored >= 0.98 * loader.stats.offered
    assert loader.stats.selectivity == pytest.approx(1 / 3, abs=0.01)


def test_kath18_starts_without_the_losses_of_training():
    """As with mixup, whose losses are no example's: pools are scored now and then to see whether it pays."""
    loader, model = kath18_on_known_losses(sb.kath18(1 / 3), weight=0.0)  # all losses are 1
    for _ in loader:
        pass
    assert loader.stats.selectivity == 1
    assert loader.stats.scored == 96 * 5  # of 50 candidate batches the first, and then one in 11
    torch.nn.init.constant_(model.weight, 1.0)
    torch.nn.init.constant_(model.bias, 0.0)
    for _ in range(4):
        for _ in loader:
            pass
    assert loader.stats.selectivity < 0.8
    assert loader.schedule.tau == pytest.approx(EXACT_TAU, rel=0.15)


def test_zero_scores_are_never_drawn():
    scores = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])
    policy = sb.policies.ImportancePolicy(selectivity=0.8)
    drawn = {p for seed in range(200) for p in policy.select(scores, generator(seed)).positions.tolist()}
    assert drawn == {1, 3}


# ---- unbiasedness, for every policy that promises it


@pytest.mark.parametrize(
    ("policy", "per_pool"),
    [
        (sb.policies.PercentilePolicy(selectivity=0.4, unbiased=True, max_weight=1e9), False),
        (sb.policies.BelowMeanPolicy(prune=0.6), False),
        (sb.policies.ImportancePolicy(selectivity=0.3, unbiased=True), True),
    ],
    ids=["percentile", "infobatch", "kath18"],
)
def test_the_mean_gradient_over_many_draws_is_the_full_gradient(policy, per_pool):
    """Weighted sums over what is selected (per pool: means over the draws), within 5 standard errors."""
    model = nn.Linear(64, 10)
    losses = F.cross_entropy(model(INPUTS[:60]), TARGETS[:60], reduction="none")
    rows = torch.stack([torch.autograd.grad(loss, model.weight, retain_graph=True)[0].flatten() for loss in losses])
    coins, sums = generator(), []
    for _ in range(3000):
        selection = policy.select(losses.detach(), coins)
        total = selection.weights @ rows[selection.positions]
        sums.append(total / len(selection.positions) * 60 if per_pool else total)
    stacked = torch.stack(sums)
    error = (stacked.mean(0) - rows.sum(0)).abs()
    assert bool((error <= 5 * stacked.std(0) / 3000**0.5 + 1e-4).all())


def test_without_weights_the_gradient_is_biased():
    """The test above can fail: SB as it is does not pass it."""
    policy, coins, losses = sb.policies.PercentilePolicy(selectivity=0.4), generator(), torch.rand(60)
    sums = torch.tensor([float(losses[policy.select(losses, coins).positions].sum()) for _ in range(500)])
    assert abs(sums.mean() - losses.sum()) > 5 * sums.std() / 500**0.5


def test_weights_are_cut_at_the_largest():
    policy = sb.policies.PercentilePolicy(selectivity=0.5, unbiased=True, max_weight=3)
    weights = torch.cat([policy.select(torch.rand(500), generator(seed)).weights for seed in range(20)])
    assert float(weights.max()) == 3
    # beta 1: u < 1/3 is cut; of the selected that is (1/3)^2.
    assert float((weights == 3).float().mean()) == pytest.approx(1 / 9, abs=0.02)


# ---- composer_backprop


def test_composer_keeps_a_fixed_share_of_each_batch_inside_its_window():
    loader = make_loader(sb.methods.composer_backprop(0.5, interrupt=3), num_epochs=10)
    for _ in range(10):
        list(loader)
    # Tried with the first batch, so that errors come early; then epochs 5 to 8 of 13 batches, every third one plain.
    scored = loader.stats.scored - 16
    assert 4 * 9 * 11 <= scored <= 4 * 9 * 16
    assert abs(loader.stats.trained - (10 * 203 - scored / 2)) <= 0.5


def test_low_resolution_scoring():
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 10)

        def forward(self, x):
            seen.append((self.training, x.shape[2:]))
            return self.linear(x.mean((2, 3)))

    data = torch.utils.data.TensorDataset(INPUTS.view(-1, 1, 8, 8), TARGETS)
    model = Spy()
    loader = make_loader(sb.methods.composer_backprop(start=0, end=1, scale_factor=0.5), dataset=data, model=model)
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
    assert set(seen) == {(False, (4, 4)), (True, (8, 8))}


# ---- repeated_random


@pytest.mark.parametrize("selectivity", [0.1, 0.25, 0.3, 0.5, 0.7])
def test_no_example_is_seen_again_before_all_have_been(selectivity):
    loader = make_loader(sb.repeated_random(selectivity))
    selected = 0.0
    for _ in range(12):
        selected += NUM_DIGITS * selectivity
        for _ in loader:
            pass
        assert abs(int(loader.ledger.selected.sum()) - selected) <= 0.5 + 1e-6
        assert int(loader.ledger.selected.max() - loader.ledger.selected.min()) <= 1
    assert loader.stats.scored == 0


# ---- infobatch


def test_below_the_mean_and_above():
    scores = torch.tensor([1.0, 1.0, 1.0, 9.0])
    policy = sb.policies.BelowMeanPolicy(prune=0.75)
    selections = [policy.select(scores, generator(seed)) for seed in range(300)]
    assert selections[0].probabilities.tolist() == [0.25, 0.25, 0.25, 1]
    for selection in selections:
        weights = dict(zip(selection.positions.tolist(), selection.weights.tolist(), strict=True))
        assert weights.pop(3) == 1
        assert set(weights.values()) <= {4.0}


@pytest.mark.parametrize("value", [0.1, 0.3, 1e-8, 7e8, 0.0])
def test_equal_losses_are_not_below_their_mean(value):
    assert (
        sb.policies.BelowMeanPolicy(prune=0.9).select(torch.full((1001,), value), generator()).probabilities.min() == 1
    )


@pytest.mark.parametrize("num_epochs", [1, 2, 5, 8])
@pytest.mark.parametrize("until", [0.5, 0.875])
def test_weights_reset_exactly_when_the_window_ends(num_epochs, until):
    model = make_model()
    loader = make_loader(sb.infobatch(prune=0.5, until=until), model=model, num_epochs=num_epochs)
    weighted = []
    for epoch in range(num_epochs):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
        weighted.append(loader.stats.skipped_before_loading)
        skipped_now = weighted[-1] - (weighted[-2] if epoch else 0)
        in_window = [epoch + i / 13 < until * num_epochs - 1e-9 for i in range(13)]
        assert (skipped_now > 0) == (epoch > 0 and any(in_window)), (epoch, skipped_now)
        if not any(in_window):
            assert bool((loader.batch.weights == 1).all())


# ---- ledger_backprop


@pytest.mark.parametrize("share", [0.01, 0.5, 0.8, 0.9, 0.99])
def test_a_loss_share_takes_the_hardest_and_not_one_too_many(share):
    losses = torch.randn(300, generator=generator()).exp()
    selection = sb.policies.LossSharePolicy(loss_share=share, cap=float("inf")).select(losses, generator())
    assert selection.positions.tolist() == sorted(reference.hardest_with_loss_share(losses.tolist(), share))
    kept = selection.probabilities.bool()
    assert kept.nonzero().flatten().tolist() == selection.positions.tolist()
    assert losses[kept].min() > losses[~kept].max()
    excess = losses - losses.min()
    assert excess[kept].sum() >= share * excess.sum() > excess[kept].sum() - excess[kept].min()


def test_outliers_are_kept_with_the_chance_that_candidates_have_on_average():
    losses = torch.cat([torch.rand(3996, generator=generator()), torch.tensor([1e3, 1e5, 1e9, 2e9])])
    policy, draws, times = sb.policies.LossSharePolicy(loss_share=0.9), generator(), torch.zeros(4)
    fraction = policy.keep_fraction(losses)
    assert fraction == pytest.approx(1 - 0.1**0.5, abs=0.03)  # of uniform losses: outliers do not count
    for _ in range(400):
        selection = policy.select(losses, draws)
        kept = torch.zeros(4000).index_fill_(0, selection.positions, 1)
        times += kept[-4:]
        usual = kept[:3996].bool()
        assert int(usual.sum()) == pytest.approx(fraction * 3996, abs=1)
        assert losses[:3996][usual].min() > losses[:3996][~usual].max()
    assert selection.probabilities[-4:].tolist() == [fraction] * 4
    assert (times / 400).tolist() == pytest.approx([fraction] * 4, abs=5 * (0.25 / 400) ** 0.5)
    few = policy.select(losses[3000:], draws)  # among a thousand, the same four may be a rare class
    assert few.probabilities[-4:].tolist() == [1] * 4 and len(few.positions) == pytest.approx(fraction * 1000, abs=30)


@pytest.mark.parametrize("constant", [-8.0, -0.25, 0.5, 16.0])
def test_adding_a_constant_to_every_loss_changes_no_selection(constant):
    losses = (torch.randn(300, generator=generator()).mul(0.5).exp() * 1024).round() / 1024  # exact sums in float32
    as_they_are = sb.policies.LossSharePolicy(loss_share=0.8).select(losses, generator())
    shifted = sb.policies.LossSharePolicy(loss_share=0.8).select(losses + constant, generator())
    assert torch.equal(shifted.positions, as_they_are.positions)
    assert torch.equal(shifted.probabilities, as_they_are.probabilities)
    assert len(as_they_are.positions) < 250


@pytest.mark.parametrize("size", [1, 2, 3, 11, 20, 500])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.95, 1.0])
def test_a_loss_share_keeps_something(size, share):
    one = torch.zeros(size).index_fill_(0, torch.tensor([size - 1]), 1e30)
    for losses in (one, -one, one * 1e-30, torch.zeros(size), torch.full((size,), -3.0), torch.rand(size) - 0.5):
        selection = sb.policies.LossSharePolicy(loss_share=share).select(losses, generator())
        assert 0 < len(selection.positions) <= size
        assert len(set(selection.positions.tolist())) == len(selection.positions)
        assert share < 1 or len(selection.positions) == size


def test_loss_share_at_its_limits():
    losses = torch.cat([torch.rand(40), torch.zeros(10)])
    everything = sb.policies.LossSharePolicy(loss_share=1.0).select(losses, generator())
    assert len(everything.positions) == 50
    half = sb.policies.LossSharePolicy(loss_share=0.5)
    assert len(half.select(torch.zeros(50), generator()).positions) == 50  # nothing is known to be easier
    assert half.select(torch.ones(1), generator()).positions.tolist() == [0]


def test_ledger_backprop_makes_no_selection_pass_and_loads_only_what_it_trains_on():
    model = make_model()
    loader = make_loader(sb.methods.ledger_percentile(0.3), model=model, num_epochs=6)
    train(loader, model, 6)
    assert loader.stats.scored == 0
    assert loader.stats.offered - loader.stats.skipped_before_loading == loader.stats.trained


def test_every_example_is_trained_on_at_least_once_in_max_age_epochs():
    model, last, gaps = make_model(), torch.zeros(NUM_DIGITS), []
    loader = make_loader(sb.methods.ledger_percentile(0.05, max_age=3), model=model)
    for epoch in range(12):
        before = loader.ledger.selected.clone()
        train(loader, model, epoch + 1)
        chosen = loader.ledger.selected > before
        last[chosen] = epoch
        # One more epoch may pass while a selected example waits for its batch to fill.
        gaps.append(int((epoch - last).max()))
    assert max(gaps) <= 3
    assert loader.stats.selectivity < 0.6


# ---- options of SB-like methods


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.int])
def test_classes_may_be_a_list_or_an_array(convert):
    labels = torch.arange(NUM_DIGITS) % 3
    given = make_loader(sb.ledger_backprop(classes=convert(labels))).method.groups
    assert given.dtype == torch.int64 and torch.equal(given, labels)


@pytest.mark.parametrize(
    ("classes", "error", "message"),
    [
        (torch.zeros(NUM_DIGITS, 2), ValueError, r"\(203, 2\)"),
        (["cat", "dog"], TypeError, "cat"),
        ([[0, 1], [2]], TypeError, r"\[2\]"),
        ([0.0, 1.0], TypeError, "float32"),
    ],
)
def test_classes_that_are_none(classes, error, message):
    with pytest.raises(error, match=message):
        sb.ledger_backprop(classes=classes)


def test_classes_of_another_data_set():
    with pytest.raises(ValueError, match=r"3 ids.* 203"):
        make_loader(sb.ledger_backprop(classes=[0, 1, 2]))


@pytest.mark.parametrize("selectivity", [0.1, 0.37, 0.9, 1.0])
def test_fixed_size_varies_by_rounding_alone(selectivity):
    policy, coins = sb.policies.PercentilePolicy(selectivity=selectivity, fixed_size=True), generator()
    sizes = [len(policy.select(torch.rand(40), coins).positions) for _ in range(50)]
    assert set(sizes) <= {int(40 * selectivity + 1e-9), int(40 * selectivity + 1 - 1e-9)}
    assert sum(sizes) == round(50 * 40 * selectivity)


def test_expected_selective_backprop_is_sb_in_expectation():
    """Mean gradient of SB's selected batches over many draws = gradient of the weighted whole batch."""
    model = nn.Linear(64, 10)
    losses = F.cross_entropy(model(INPUTS[:100]), TARGETS[:100], reduction="none")
    rows = torch.stack([torch.autograd.grad(loss, model.bias, retain_graph=True)[0] for loss in losses])
    weighted = sb.policies.ExpectedPolicy(selectivity=0.4).select(losses.detach(), generator())
    expected = (weighted.weights[:, None] * rows).mean(0)
    draws, coins = [], generator()
    for _ in range(2000):
        positions = sb.policies.PercentilePolicy(selectivity=0.4).select(losses.detach(), coins).positions
        draws.append(rows[positions].sum(0) / (0.4 * 100))  # a batch of 40 comes from 100 candidates
    stacked = torch.stack(draws)
    assert bool(((stacked.mean(0) - expected).abs() <= 5 * stacked.std(0) / 2000**0.5 + 1e-6).all())


def test_expected_batches_are_larger():
    model = make_model()
    loader = make_loader(sb.methods.expected_selective_backprop(0.25), model=model)
    assert loader.batch_size == 64
    sizes = []
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
        sizes.append(len(inputs))
    assert sizes == [64, 64, 38, 37]
    assert len(loader) == 4


# ---- diet


def test_pruned_examples_are_never_offered_and_batches_stay_full():
    scores = torch.rand(NUM_DIGITS)
    loader = make_loader(sb.diet(method=sb.traditional(), scores=scores, prune=0.25))
    sizes = [len(inputs) for inputs, _ in loader]
    kept = NUM_DIGITS - round(0.25 * NUM_DIGITS)
    assert sizes == [16] * (kept // 16) + [kept % 16]
    assert loader.ledger.offered.bool().tolist() == (scores >= scores.sort().values[NUM_DIGITS - kept]).tolist()
    assert len(loader) == len(sizes)


def test_scores_of_another_data_set():
    with pytest.raises(ValueError, match=r"99 ids.* 203"):
        make_loader(sb.diet(method=sb.traditional(), scores=torch.rand(99)))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sb.ledger_backprop(loss_share=1.5), ValueError, "loss_share .* 1.5"),
        (lambda: sb.ledger_backprop(max_age=0), ValueError, "max_age .* 0"),
        (lambda: sb.infobatch(prune=1.0), ValueError, "prune .* 1.0"),
        (lambda: sb.kath18(2), ValueError, "selectivity .* 2"),
        (lambda: sb.kath18(score="gradient"), ValueError, "gradient_norm.*'gradient'"),
        (
            lambda: sb.methods.distance_backprop(minimum=2),
            ValueError,
            "minimum .* 2",
        ),
        (lambda: sb.methods.predicted_selective_backprop(decay=1.5), ValueError, "decay .* 1.5"),
        (lambda: sb.methods.composer_backprop(scale_factor=2), ValueError, "scale_factor .* 2"),
        (lambda: sb.selective_backprop(fixed_size=True, unbiased=True), ValueError, "either fixed_size or unbiased"),
        (lambda: sb.selective_backprop(max_weight=0.5), ValueError, "max_weight .* 0.5"),
        (
            lambda: sb.policies.ImportancePolicy(selectivity=0.5).select(torch.tensor([2.0, -1.0]), generator()),
            ValueError,
            r"negative.* -1 .*\[1\]",
        ),
        (lambda: sb.policies.LossSharePolicy(loss_share=0.5, cap=0.5), ValueError, "cap .* 0.5"),
    ],
)
def test_bad_parameters(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_low_resolution_scoring_of_a_network_for_one_size_is_refused_at_once():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))
    data = torch.utils.data.TensorDataset(INPUTS.view(-1, 1, 8, 8), TARGETS)
    loader = make_loader(
        sb.selective_backprop(scoring=sb.scorers.ForwardScorer(scale_factor=0.5), start=0.5),
        dataset=data,
        model=model,
        num_epochs=4,
    )
    with pytest.raises(ValueError, match=r"scale_factor 0\.5"):
        next(iter(loader))
