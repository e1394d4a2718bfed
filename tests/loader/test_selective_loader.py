"""What a user sees of SelectiveLoader, beyond the promises that hold for every method."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.helpers import Noisy, digits, make_loader, make_model, train


def test_the_readme_loop_learns_digits():
    torch.manual_seed(0)
    model = make_model()
    loader = make_loader(sb.selective_backprop(1 / 3, history_size=128), dataset=digits(1500), model=model)
    train(loader, model, epochs=8)
    inputs, targets = digits(1797)[1500:]
    model.eval()
    assert (model(inputs).argmax(1) != targets).float().mean() < 0.15
    assert loader.stats.selectivity == pytest.approx(1 / 3, abs=0.03)


def test_training_batches_are_the_very_tensors_that_were_scored():
    """Augmentation is drawn once: the row trained on is the row whose loss decided."""
    seen = {}

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            if not self.training:
                seen.update({row.sum().item(): row.clone() for row in x})
            return self.linear(x)

    model = Spy()
    loader = make_loader(sb.selective_backprop(0.3), dataset=Noisy(), model=model)
    rows = 0
    for inputs, _ in loader:
        for row in inputs:
            assert torch.equal(row, seen[row.sum().item()])
            rows += 1
    assert rows > 30


def test_candidate_batches_may_be_larger_than_training_batches():
    loader = make_loader(sb.selective_backprop(0.5), loader_options={"batch_size": 100}, batch_size=8)
    for _ in range(2):
        sizes = [len(inputs) for inputs, _ in loader]
        assert set(sizes[:-2]) == {8} and min(sizes) >= 4
    assert loader.stats.scored == 2 * 203
    assert len(loader) == 26  # 203 candidates make at most that many batches of 8


def test_explicit_batch_size_with_selectivity_1_makes_the_plain_batches_of_that_size():
    options = {"batch_size": 64, "shuffle": False}
    loader = make_loader(sb.selective_backprop(1.0), loader_options=options, batch_size=16)
    got = [inputs for inputs, _ in loader]
    plain = [inputs for inputs, _ in DataLoader(digits(), batch_size=16)]
    assert len(got) == len(plain)
    assert all(map(torch.equal, got, plain))


@pytest.mark.parametrize("method", [sb.selective_backprop(0.3), sb.random_backprop(0.3)])
def test_drop_last_drops_what_fills_no_batch_and_counts_it(method):
    loader = make_loader(method, loader_options={"drop_last": True})
    for _ in range(3):
        assert {len(inputs) for inputs, _ in loader} == {16}
    assert loader.stats.offered == 3 * 192
    assert loader.stats.queued == 0
    if method.scorer.needs.selection_pass:
        assert 0 < loader.stats.dropped < 3 * 16


def test_warmup_trains_on_everything_and_scores_only_the_first_batch():
    loader = make_loader(sb.selective_backprop(0.3, warmup_epochs=1))
    assert sum(len(inputs) for inputs, _ in loader) == 203
    assert loader.stats.scored == 16  # to find out at once whether scoring works


def test_the_mean_of_losses_in_half_precision_does_not_overflow():
    loss_fn = lambda outputs, targets: outputs.sum(1).half() * 0 + 6e4  # noqa: E731
    loader = sb.SelectiveLoader(DataLoader(digits(), 16), make_model(), loss_fn, sb.ledger_backprop())
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets)
    assert loader.stats.mean_trained_loss == pytest.approx(6e4, rel=1e-3)


def test_stale_epochs_score_nothing_and_load_only_what_they_train_on():
    loader = make_loader(sb.stale_selective_backprop(0.3, every=3))
    history = []
    for _ in range(6):
        for _ in loader:
            pass
        history.append((loader.stats.scored, loader.stats.skipped_before_loading))
    assert [scored for scored, _ in history] == [203, 203, 203, 406, 406, 406]
    skipped = [b[1] - a[1] for a, b in zip([(0, 0), *history], history, strict=False)]
    assert [count > 0 for count in skipped] == [False, True, True, False, True, True]
    assert loader.stats.selectivity == pytest.approx(0.3, abs=0.06)


def test_examples_without_a_score_are_trained_on_in_a_stale_epoch():
    """Half of the ids are offered for the first time in an epoch that is planned by scores of the epoch before."""
    dataset = digits()

    class Growing(torch.utils.data.Sampler):
        count = 100

        def __iter__(self):
            return iter(torch.randperm(self.count).tolist())

        def __len__(self):
            return self.count

    sampler, model = Growing(), make_model()
    train_loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    method = sb.stale_selective_backprop(0.5, every=2)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method)
    for _ in loader:
        pass
    first_scores = loader.ledger.score.clone()
    assert loader.stats.scored == 100
    sampler.count = 203
    trained = []
    for inputs, targets in loader:
        assert torch.equal(inputs, dataset.tensors[0][loader.batch.ids])
        assert torch.equal(targets, dataset.tensors[1][loader.batch.ids])
        trained += loader.batch.ids.tolist()
    assert loader.stats.scored == 100
    assert set(range(100, 203)) <= set(trained) and len(trained) < 180
    assert torch.equal(loader.ledger.score[:100], first_scores[:100])


class Weighted(sb.policies.UniformPolicy):
    """Unbiased: weight 1 / p."""

    def select(self, scores, generator):
        selection = super().select(scores, generator)
        return sb.types.Selection(selection.positions, selection.weights / self.selectivity, selection.probabilities)


def weighted(selectivity=0.5):
    return sb.Method("weighted", sb.scorers.ConstantScorer(), Weighted(selectivity=selectivity))


def test_weights_are_applied_by_loader_loss():
    model = make_model().eval()
    loader = make_loader(weighted(), model=model)
    iteration = iter(loader)
    inputs, targets = next(iteration)
    plain = nn.functional.cross_entropy(model(inputs), targets)
    assert torch.allclose(loader.loss(model(inputs), targets), 2 * plain)


def test_unbiased_weights_give_an_unbiased_gradient():
    """Mean gradient over 300 epochs of weighted batches = full gradient, within 5 standard errors."""
    model = nn.Linear(64, 10)
    loader = make_loader(weighted(0.25), model=model, loader_options={"batch_size": 203, "shuffle": False})
    inputs, targets = digits().tensors
    nn.functional.cross_entropy(model(inputs), targets, reduction="sum").backward()
    full = model.weight.grad.clone()
    sums = []
    for _ in range(300):
        total = torch.zeros_like(full)
        for x, y in loader:
            total += torch.autograd.grad(loader.loss(model(x), y) * len(x), model.weight)[0]
        sums.append(total)
    stacked = torch.stack(sums)
    error = (stacked.mean(0) - full).abs()
    spread = stacked.std(0) / 300**0.5
    assert bool((error <= 5 * spread + 1e-3).all())


def test_asking_for_the_weights_is_enough():
    loader = make_loader(weighted())
    assert sum(float(loader.weights().sum()) for _ in loader) > 0


def test_progress_is_the_fraction_of_candidates_offered():
    methods = (sb.selective_backprop(0.4), sb.random_backprop(0.4), sb.stale_selective_backprop(0.4), sb.traditional())
    for method in methods:
        loader = make_loader(method, num_epochs=3)
        values = [loader.progress]
        for epoch in range(3):
            for _ in loader:
                values.append(loader.progress)
            assert loader.progress == pytest.approx((epoch + 1) / 3)
        assert values == sorted(values)
        assert values[0] == 0 and values[2] > values[1], "it rises within an epoch"


def test_seeds_and_loaders_of_one_method():
    method = sb.selective_backprop(0.5)  # of which each loader has a copy

    def ids(seed):
        torch.manual_seed(0)
        loader = make_loader(method, seed=seed)
        return [loader.batch.ids.tolist() for _ in loader]

    assert ids(1) == ids(1) != ids(2)


def test_stats_add_up_and_read_well():
    loader = make_loader(sb.stale_selective_backprop(0.3, every=2), num_epochs=2)
    train(loader, loader.model, 2)
    text = str(loader.stats)
    for part in ("offered 406", "scored 203", "skipped before loading", "selectivity 0.", "seconds: loading"):
        assert part in text
    assert "queued" not in text and "dropped" not in text, "counts of 0 are left out"
    assert all(seconds > 0 for seconds in loader.stats.seconds.values())


def test_a_compiled_model_is_scored_without_compiling_it_again():
    compiled_for = []

    def backend(graph, inputs):
        compiled_for.append(torch.is_grad_enabled())
        return graph.forward

    model = nn.Sequential(nn.Linear(64, 10))
    loader = make_loader(sb.selective_backprop(0.5), model=torch.compile(model, backend=backend))
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), targets).backward()
    assert compiled_for
    assert all(compiled_for), "only training, with gradients, was compiled"


def test_gradient_accumulation_and_amp():
    """Two batches a step under autocast: the loop is the user's own."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = make_loader(sb.selective_backprop(0.5), model=model)
    before = model[0].weight.detach().clone()
    for step, (inputs, targets) in enumerate(loader, start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loader.loss(model(inputs), targets) / 2
        loss.backward()
        if step % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert not torch.equal(before, model[0].weight)
    assert int((~loader.ledger.loss.isnan()).sum()) == loader.stats.trained


class Noting(sb.policies.UniformPolicy):
    """Notes the epochs that begin."""

    begun = ()

    def begin_epoch(self, epoch, num_epochs):
        self.begun = (*self.begun, epoch)


@pytest.mark.parametrize("scorer", [sb.scorers.ForwardScorer(), sb.scorers.ConstantScorer()], ids=["scored", "planned"])
def test_a_policy_is_told_of_every_epoch(scorer):
    model = make_model()
    loader = make_loader(sb.Method("mine", scorer, Noting(selectivity=0.5)), model=model, num_epochs=3)
    train(loader, model, 3)
    assert loader.policy.begun == (0, 1, 2)
