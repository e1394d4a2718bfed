"""Forward reuse in the loader: what is trained on, by which loss, and what is told."""

import logging

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.helpers import digits, make_loader

INPUTS, TARGETS = digits().tensors


def make_network(norm=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32) if norm else nn.Identity(), nn.GELU(), nn.Linear(32, 10))


def grads_of(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


def check_same(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [sb.selective_backprop, sb.top_k])
@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2, 10)),
        nn.CrossEntropyLoss(reduction="sum"),
    ],
)
def test_gradients_are_those_of_training_on_the_selected_alone(method, loss_fn):
    model = make_network()
    data = DataLoader(TensorDataset(INPUTS, TARGETS), 48, shuffle=True)
    loader = sb.SelectiveLoader(data, model, loss_fn, method(1 / 3, scoring="reuse"))
    for inputs, targets in loader:
        found = grads_of(model, loader.loss(model(inputs), targets))
        chosen = loader.batch.weights > 0
        assert 0 < chosen.sum() < len(inputs)
        check_same(grads_of(model, loss_fn(model(inputs[chosen]), targets[chosen])), found)


def test_weights_are_applied():
    model = make_network()
    loader = make_loader(sb.selective_backprop(0.5, unbiased=True, scoring="reuse"), model=model)
    for inputs, targets in loader:
        found = grads_of(model, loader.loss(model(inputs), targets))
        chosen, chance = loader.batch.weights > 0, loader.batch.probabilities
        weights = (1 / chance[chosen]).clamp(max=10).float()
        losses = F.cross_entropy(model(inputs[chosen]), targets[chosen], reduction="none")
        check_same(grads_of(model, (losses * weights).mean()), found)


def test_the_selection_is_that_of_the_policy():
    """The same policy and seed, fed with the losses of the same training passes, selects the same examples."""
    model = make_network()
    loader = make_loader(sb.selective_backprop(1 / 3, scoring="reuse"), model=model, seed=5)
    policy, generator = sb.policies.PercentilePolicy(selectivity=1 / 3), torch.Generator().manual_seed(5)
    for inputs, targets in loader:
        outputs = model(inputs)
        loader.loss(outputs, targets)
        expected = policy.select(F.cross_entropy(outputs, targets, reduction="none").detach(), generator)
        assert (loader.batch.weights > 0).nonzero().flatten().tolist() == expected.positions.tolist()


def test_what_is_counted():
    model = make_network()
    loader = make_loader(sb.selective_backprop(1 / 3, scoring="reuse"), model=model, num_epochs=2)
    selected = 0
    for _ in range(2):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            selected += int((loader.batch.weights > 0).sum())
    stats = loader.stats
    assert stats.offered == stats.scored == 2 * len(INPUTS)
    assert stats.trained == stats.reused == selected == int(loader.ledger.selected.sum()) < stats.offered
    assert stats.fidelity == 1 and stats.queued == 0


def test_asked_for_again_the_loss_is_the_same():
    model = make_network()
    loader = make_loader(sb.selective_backprop(1 / 3, scoring="reuse"), model=model)
    for inputs, targets in loader:
        first, again = (loader.loss(model(inputs), targets) for _ in range(2))
        torch.testing.assert_close(first, again)
    assert loader.stats.scored == loader.stats.offered, "selected once"


def test_token_losses():
    """The mean over tokens that are not ignored, of the selected sequences alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    tokens = torch.randint(20, (64, 7))
    labels = tokens.roll(-1, 1).masked_fill(torch.rand(64, 7) < 0.3, -100)

    def loss_fn(outputs, targets, reduction="mean"):
        return F.cross_entropy(outputs.transpose(1, 2), targets, reduction=reduction)

    data = DataLoader(TensorDataset(tokens, labels), 32)
    loader = sb.SelectiveLoader(data, model, loss_fn, sb.top_k(0.25, scoring="reuse"), reducer="mean")
    for inputs, targets in loader:
        found = grads_of(model, loader.loss(model(inputs), targets))
        chosen = loader.batch.weights > 0
        assert int(chosen.sum()) == 8
        check_same(grads_of(model, loss_fn(model(inputs[chosen]), targets[chosen])), found)


def test_a_compiled_model_gets_the_masked_loss_and_says_so(caplog):
    model = make_network()
    compiled = torch.compile(model, backend="eager")
    loader = make_loader(sb.top_k(0.25, scoring="reuse"), model=compiled)
    with caplog.at_level(logging.INFO, logger="selective_backprop"):
        for inputs, targets in loader:
            found = grads_of(model, loader.loss(compiled(inputs), targets))
            chosen = loader.batch.weights > 0
            check_same(grads_of(model, F.cross_entropy(model(inputs[chosen]), targets[chosen])), found)
    (record,) = caplog.records
    assert "your model is compiled" in record.message and "exact, but it is not faster" in record.message


def test_none_selected_is_a_step_without_gradient():
    model = make_network()
    loader = make_loader(sb.selective_backprop(beta=1e6, scoring="reuse", history_size=4096), model=model)
    loader.policy.history.rank(torch.full((4096,), 100.0))
    iteration = iter(loader)
    inputs, targets = next(iteration)
    gradients = grads_of(model, loader.loss(model(inputs), targets))
    assert not any(gradient.any() for gradient in gradients) and loader.stats.trained == 0


def test_a_step_without_loader_loss_is_refused():
    loader = make_loader(sb.selective_backprop(scoring="reuse"))
    with pytest.raises(RuntimeError, match="compute the loss with"):
        list(loader)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sb.stale_selective_backprop(scoring="reuse"), "StoredScorer needs a selection pass"),
        (lambda: sb.reducible_loss(torch.rand(203), scoring="reuse"), "ReducibleLossScorer needs a selection pass"),
        (lambda: make_loader(sb.top_k(scoring="reuse"), batch_size=4), "leave out batch_size="),
        (lambda: make_loader(sb.expected_selective_backprop(scoring="reuse")), "forward reuse trains on a part"),
    ],
)
def test_what_does_not_go_together(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def error_with_batch_norm(scoring, epochs=10):
    """On a fifth of scikit-learn's digits, after training on the others."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    held_out = torch.arange(len(labels)) % 5 == 0
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = DataLoader(TensorDataset(images[~held_out], labels[~held_out]), 48, shuffle=True)
    size = {} if scoring == "reuse" else {"batch_size": 16}
    method = sb.selective_backprop(scoring=scoring)
    loader = sb.SelectiveLoader(data, model, nn.CrossEntropyLoss(), method, num_epochs=epochs, **size)
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.param_groups[0]["lr"] = 0.05 * (1.001 - loader.progress)
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
    return float((model.eval()(images[held_out]).argmax(1) != labels[held_out]).float().mean())


def test_batch_norm_trains_as_well_as_plain_sb():
    """Its gradient is not exact (see forward_reuse/layers.py); both were at 1.4% to 2.8% over four seeds."""
    assert error_with_batch_norm("reuse") <= error_with_batch_norm("eval") + 0.02
