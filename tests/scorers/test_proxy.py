"""A small model that scores for a large one."""

import copy
import io
import random

import numpy as np
import pytest
import torch
from torch import nn

import selective_backprop as sb
from selective_backprop import testing
from selective_backprop.losses import PerExampleLoss, default_forward
from tests.helpers import digits, make_loader, make_model, train

INPUTS, TARGETS = digits().tensors
LOSS = PerExampleLoss(nn.CrossEntropyLoss())


def small(seed=4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.3), nn.Linear(8, 10))


def candidates(start=0, size=32):
    rows = torch.arange(start, start + size)
    return sb.types.Candidates((INPUTS[rows], TARGETS[rows]), rows, size)


def task(model=None):
    return sb.types.Task(model or make_model(), default_forward, LOSS)


def losses(model, batch):
    inputs, targets = batch.data
    with torch.no_grad():
        return nn.functional.cross_entropy(copy.deepcopy(model).eval()(inputs), targets, reduction="none")


def weights(model):
    return copy.deepcopy(model.state_dict())


def test_scores_are_the_proxys_losses_as_it_is_before_it_learns_from_the_batch():
    scorer = sb.scorers.proxy(small(), train_every=1)
    for start in (0, 32, 64):
        expected = losses(scorer.model, candidates(start))
        assert torch.equal(scorer.score(candidates(start), task()), expected)
        assert not torch.equal(losses(scorer.model, candidates(start)), expected)


def test_it_can_learn_from_its_own_selection_alone():
    """The step is that of plain training on the third of the batch with the highest losses of the proxy."""
    batch, plain = candidates(size=30), small()
    with torch.no_grad():
        plain[1].p = 0.0
    scorer = sb.scorers.proxy(copy.deepcopy(plain), train_every=1, train_share=1 / 3)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rows = losses(plain, batch).argsort(descending=True)[:10].sort().values
    nn.functional.cross_entropy(plain(INPUTS[rows]), TARGETS[rows]).backward()
    optimizer.step()
    scorer.score(batch, task())
    for key, value in plain.state_dict().items():
        assert torch.allclose(scorer.model.state_dict()[key], value, atol=1e-7)
    before = weights(scorer.model)
    scorer.watch(batch, task())
    assert not testing.same(before, weights(scorer.model)), "in a warm-up, from the whole batch"
    with pytest.raises(ValueError, match="train_share"):
        sb.scorers.proxy(small(), train_share=0)


def test_its_step_is_an_ordinary_one_on_the_whole_batch():
    model = small()
    model[1].p = 0.0
    scorer, reference = sb.scorers.proxy(copy.deepcopy(model), train_every=1), copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for start in (0, 32, 64, 96):
        batch = candidates(start)
        scorer.score(batch, task())
        optimizer.zero_grad()
        nn.functional.cross_entropy(reference(batch.data[0]), batch.data[1]).backward()
        optimizer.step()
        assert all(
            torch.allclose(a, b, atol=1e-6)
            for a, b in zip(scorer.model.parameters(), reference.parameters(), strict=True)
        )


def test_learning_leaves_no_trace_elsewhere():
    """The large model, global random states and a loss with parameters of its own stay as they were."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, targets):
            return self.scale * nn.functional.cross_entropy(outputs, targets, reduction="none")

    random.seed(1)
    np.random.seed(1)
    model, loss_fn, scorer = make_model(), Scaled(), sb.scorers.proxy(make_model(seed=8), train_every=1)
    before = testing.model_trace(model), testing.model_trace(loss_fn), testing.global_random_states()
    for start in range(0, 160, 32):
        scores = scorer.score(candidates(start), sb.types.Task(model, default_forward, PerExampleLoss(loss_fn)))
        assert not scores.requires_grad
    assert testing.same(
        before, (testing.model_trace(model), testing.model_trace(loss_fn), testing.global_random_states())
    )
    assert all(parameter.grad is None for parameter in scorer.model.parameters())
    assert int(scorer.model[1].num_batches_tracked) == 5, "BatchNorm learned from five training passes, no scoring"


def test_dropout_is_drawn_anew_at_each_step_and_not_from_the_callers_numbers():
    drawn = []

    def forward(model, batch):
        if model.training and model is not large:
            drawn.append(torch.rand(3))
        return default_forward(model, batch)

    large, scorer = make_model(), sb.scorers.proxy(small().eval(), train_every=1)
    torch.manual_seed(0)
    global_draw = torch.rand(3)
    for _ in range(3):
        torch.manual_seed(0)
        scorer.score(candidates(), sb.types.Task(large, forward, LOSS))
        assert torch.equal(torch.rand(3), global_draw)
    assert len({tuple(draw.tolist()) for draw in [*drawn, global_draw]}) == 4


def test_the_model_given_is_a_recipe():
    given, model = small(), make_model()
    before = weights(given)
    method = sb.top_k(0.5, scoring=sb.scorers.proxy(given, train_every=1))
    loaders = [make_loader(method, model=model, loader_options={"shuffle": False}) for _ in range(2)]
    for loader in loaders:
        train(loader, model, 1)
        assert not testing.same(before, weights(loader.scorer.model))
    assert testing.same(before, weights(given))
    assert testing.same(*(weights(loader.scorer.model) for loader in loaders)), "the large model plays no part"


def test_fidelity_is_against_the_large_model_and_grows():
    """A linear proxy comes to rank examples as a network with two hidden layers does. Over seeds: 0.63 to 0.71."""
    torch.manual_seed(0)
    model, found = make_model(), []
    method = sb.selective_backprop(0.5, scoring=sb.scorers.proxy(nn.Linear(64, 10), train_every=1))
    loader = make_loader(method, dataset=digits(1797), model=model, loader_options={"batch_size": 32})
    train(loader, model, 6, on_step=lambda *_: found.append(loader.scorer.fidelity))
    first, last = (sum(part) / len(part) for part in (found[:80], found[-80:]))
    assert last > 0.5 and last > first + 0.3, (first, last)


def test_it_resumes_exactly_with_any_optimizer():
    def new():
        scorer = sb.scorers.proxy(make_model(seed=8), train_every=2, optimizer=torch.optim.AdamW)
        return copy.deepcopy(scorer)  # as a loader does

    scorer, resumed = new(), new()
    for start in range(0, 96, 32):
        scorer.score(candidates(start), task())
    file = io.BytesIO()
    torch.save(scorer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    kept = copy.deepcopy(state)
    resumed.load_state_dict(state)
    for start in range(0, 160, 32):
        assert torch.equal(scorer.score(candidates(start), task()), resumed.score(candidates(start), task()))
    assert testing.same(scorer.state_dict(), resumed.state_dict())
    assert testing.same(state, kept), "what was loaded can be loaded again"


def test_a_single_candidate_is_scored_and_not_trained_on():
    """BatchNorm could not: the last candidate batch of an epoch must not end the run."""
    scorer = sb.scorers.proxy(make_model(), train_every=1)
    before = weights(scorer.model)
    assert scorer.score(candidates(size=1), task()).shape == (1,)
    assert testing.same(before, weights(scorer.model))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sb.scorers.proxy("small_cnn"), TypeError, "str"),
        (lambda: sb.scorers.proxy(small(), -1), ValueError, "-1"),
        (lambda: sb.scorers.proxy(nn.ReLU()), ValueError, "train_every=0"),
        (
            lambda: sb.scorers.proxy(small(), optimizer=torch.optim.SGD(small().parameters(), lr=0.1)),
            TypeError,
            "SGD",
        ),
        (lambda: sb.scorers.proxy(small(), optimizer=list), TypeError, "list"),
    ],
)
def test_bad_parameters(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("unfit", "message"),
    [
        (
            nn.Linear(32, 10),
            r"proxy \(Linear\).* mat1 and mat2",
        ),
        (nn.Linear(64, 3), r"proxy \(Linear\).* out of bounds"),
        (nn.Flatten(0), r"proxy \(Flatten\)"),
    ],
)
def test_a_proxy_for_something_else_is_refused_at_the_first_batch(unfit, message):
    """Also in a warm-up."""
    for warmup_epochs in (0, 2):
        method = sb.top_k(0.5, scoring=sb.scorers.proxy(unfit, train_every=0), warmup_epochs=warmup_epochs)
        with pytest.raises(ValueError, match=message):
            next(iter(make_loader(method)))


def test_the_proxy_learns_in_the_warm_up():
    """As many steps as without one, and nothing is scored but the first batch, which checks that all fits."""
    model = make_model()
    method = sb.top_k(0.5, warmup_epochs=1, scoring=sb.scorers.proxy(make_model(seed=8), train_every=2))
    loader = make_loader(method, model=model, num_epochs=2, loader_options={"drop_last": True})
    before = {name: value.clone() for name, value in loader.scorer.model.state_dict().items()}
    train(loader, model, 1)
    assert loader.stats.scored == 16
    assert not testing.same(before, loader.scorer.model.state_dict())
    assert int(loader.scorer.model[1].num_batches_tracked) == len(loader) // 2, "every second batch"


def test_its_rate_follows_the_run():
    """Rates at each batch: those of the schedule at this fraction of the run, whatever the method's warm-up is."""
    seen = []

    def rate(progress):
        seen.append(progress)
        return 1 - progress

    method = sb.proxy_backprop(proxy=small(), rate=rate, warmup_epochs=1)
    loader, model = make_loader(method, model=(model := make_model()), num_epochs=4), model
    rates = []
    for _ in range(4):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            rates.append(loader.scorer.optimizer.param_groups[0]["lr"])
    assert seen == sorted(seen) and seen[0] < 0.05 and seen[-1] > 0.9
    assert rates[-1] == pytest.approx(0.1 * (1 - seen[-1]))


def test_without_a_length_its_rate_stays():
    loader, model = make_loader(sb.proxy_backprop(proxy=small()), model=(model := make_model()), num_epochs=None), model
    for inputs, targets in loader:
        loader.loss(model(inputs), targets).backward()
    assert loader.scorer.optimizer.param_groups[0]["lr"] == 0.1


def test_it_scores_the_very_views_that_are_trained_on():
    """Noise is drawn anew for every view. The proxy and the model see the same numbers of an example."""
    draws, by_id = torch.Generator().manual_seed(0), {}

    class Watching(nn.Linear):
        def forward(self, inputs):
            by_id.update({float(row[0]): row.detach().clone() for row in inputs})
            return super().forward(inputs)

    def transform(batch):
        return batch[0] + torch.randn(batch[0].shape, generator=draws), batch[1]

    model = make_model()
    loader = make_loader(sb.proxy_backprop(proxy=Watching(64, 10)), model=model, num_epochs=1, transform=transform)
    for inputs, targets in loader:
        assert all(torch.equal(by_id[float(row[0])], row) for row in inputs)
        loader.loss(model(inputs), targets).backward()
