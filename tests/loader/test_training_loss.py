"""Losses that draw random numbers, count their calls or have buffers: a training step is one call, scoring is none."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop import testing
from selective_backprop.losses import PerExampleLoss, default_forward, token_cross_entropy
from tests.contracts.methods import KINDS as METHODS
from tests.helpers import digits, make_model, train


class Restless(nn.Module):
    """Smooths labels by chance, follows a running mean in a buffer, and counts its calls in a plain attribute."""

    def __init__(self, reduction="mean", loss=F.cross_entropy):
        super().__init__()
        self.reduction, self.loss = reduction, loss
        self.calls, self.seen, self.generator = 0, [], torch.Generator().manual_seed(3)
        self.register_buffer("mean_logit", torch.zeros(()))
        self.inner = nn.Dropout(0.1)

    def forward(self, outputs, targets):
        self.calls += 1
        self.seen.append(len(targets))
        self.mean_logit.mul_(0.9).add_(outputs.detach().mean(), alpha=0.1)
        noise = 0.1 * torch.randn_like(outputs) + 0.1 * torch.randn(outputs.shape[1], generator=self.generator)
        return self.loss(self.inner(outputs) + noise + self.mean_logit, targets, reduction=self.reduction)


def squared(outputs, targets, reduction="mean"):
    return F.mse_loss(outputs, F.one_hot(targets, 10).float(), reduction=reduction)


def plain_run(loss_fn, epochs):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for _ in range(epochs):
        for inputs, targets in DataLoader(digits(), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            (loss if loss.dim() == 0 else loss.mean()).backward()
            optimizer.step()
    return model


def selective_run(loss_fn, method, epochs):
    model = make_model()
    train_loader = DataLoader(digits(), batch_size=16, shuffle=True)
    per_example = sb.losses.PerExampleLoss(loss_fn, reducer="mean")
    loader = sb.SelectiveLoader(train_loader, model, per_example, method, num_epochs=epochs)
    train(loader, model, epochs, optimizer=torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9))
    return model, loader


REDUCTIONS = {
    "cross-entropy": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "mean squared error": {"loss": squared},
}


@pytest.mark.parametrize("options", REDUCTIONS.values(), ids=REDUCTIONS.keys())
@pytest.mark.parametrize(
    "make",
    [
        sb.traditional,
        lambda: sb.selective_backprop(1),
        lambda: sb.methods.ledger_percentile(1),
    ],
    ids=["traditional", "selective_backprop", "ledger_backprop"],
)
def test_where_everything_is_trained_on_it_is_plain_training_to_the_bit(make, options):
    torch.manual_seed(3)
    plain_loss = Restless(**options)
    plain = plain_run(plain_loss, 2)
    torch.manual_seed(3)
    loss_fn = Restless(**options)
    model, _ = selective_run(loss_fn, make(), 2)
    assert testing.same(plain.state_dict(), model.state_dict())
    assert testing.same(plain_loss.state_dict(), loss_fn.state_dict())
    assert (loss_fn.calls, loss_fn.seen) == (plain_loss.calls, plain_loss.seen)
    assert loss_fn.reduction == options.get("reduction", "mean")
    assert torch.equal(plain_loss.generator.get_state(), loss_fn.generator.get_state())


@pytest.mark.parametrize("name", [name for name in METHODS if "pipelined" not in name])
def test_every_method_calls_it_once_a_step(name):
    loss_fn = Restless()
    before = []
    model = make_model()
    train_loader = DataLoader(digits(), batch_size=16)
    loader = sb.SelectiveLoader(train_loader, model, loss_fn, METHODS[name](0.4), num_epochs=3)
    for _ in range(3):
        for inputs, targets in loader:
            trace = testing.model_trace(loss_fn)
            if before:
                assert testing.same(before[-1], (trace, loss_fn.calls, loss_fn.generator.get_state()))
            loader.loss(model(inputs), targets)
            before.append((testing.model_trace(loss_fn), loss_fn.calls, loss_fn.generator.get_state()))
    assert loss_fn.calls == loader.stats.batches == len(loss_fn.seen) > 0


def test_it_is_evaluated_once_where_nobody_needs_the_losses_of_examples():
    calls = []

    def loss_fn(outputs, targets, reduction="mean"):
        calls.append(reduction)
        return F.cross_entropy(outputs, targets, reduction=reduction)

    selective_run(loss_fn, sb.traditional(), 2)
    assert calls == ["mean"] * 26


def test_a_loss_of_each_example_is_evaluated_once_by_every_kind_of_step():
    calls = []

    def loss_fn(outputs, targets):
        calls.append(len(targets))
        return F.cross_entropy(outputs, targets, reduction="none")

    _, loader = selective_run(loss_fn, sb.infobatch(prune=0.4), 3)
    assert len(calls) == loader.stats.batches
    assert bool(loader.ledger.loss.isfinite().all())


def test_training_losses_are_those_of_the_draws_that_were_trained_on():
    """The second evaluation sees the same random numbers as the first."""
    loss_fn = Restless()
    outputs, targets = torch.randn(8, 10, requires_grad=True), torch.arange(8)
    loss, losses = PerExampleLoss(loss_fn).for_training(outputs, targets, None)
    torch.testing.assert_close(losses.mean(), loss.detach())
    weights = torch.tensor([1.0] * 7 + [2.0])
    weighted, losses = PerExampleLoss(loss_fn).for_training(outputs, targets, weights)
    torch.testing.assert_close((losses * weights).mean(), weighted.detach())


def test_scorers_leave_no_trace_on_it():
    inputs, targets = digits()[:32]
    task = sb.types.Task(make_model(), default_forward, PerExampleLoss(Restless()))
    for _ in range(2):
        testing_trace = testing.model_trace(task.loss.loss_fn), testing.global_random_states()
        sb.scorers.ForwardScorer().score(sb.types.Candidates((inputs, targets), torch.arange(32), 32), task)
        assert testing.same(testing_trace, (testing.model_trace(task.loss.loss_fn), testing.global_random_states()))


def test_a_loss_that_changes_its_buffers_is_not_scored_with_in_the_background():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, outputs, targets):
            self.calls += 1
            return F.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(ValueError, match=r"Counting.* buffers"):
        selective_run(Counting(), sb.selective_backprop(0.5, scoring="pipelined"), 1)


logits, classes = torch.randn(37, 13), torch.arange(37) % 13
images, probabilities = torch.randn(37, 13), torch.rand(37, 13)
signs = torch.randn(37, 13).sign()
class_weights = torch.rand(13) + 0.1
segmentation = torch.randn(5, 13, 4, 3), torch.randint(13, (5, 4, 3))
TORCH_LOSSES = {
    "cross-entropy": (nn.CrossEntropyLoss, {}, logits, classes),
    "class weights": (nn.CrossEntropyLoss, {"weight": class_weights}, logits, classes),
    "ignored": (nn.CrossEntropyLoss, {"ignore_index": 2}, logits, classes),
    "smoothed": (nn.CrossEntropyLoss, {"label_smoothing": 0.1, "ignore_index": 2}, logits, classes),
    "smoothed, class weights": (
        nn.CrossEntropyLoss,
        {"label_smoothing": 0.1, "weight": class_weights},
        logits,
        classes,
    ),
    "class weights, ignored": (nn.CrossEntropyLoss, {"weight": class_weights, "ignore_index": 2}, logits, classes),
    "pixels": (nn.CrossEntropyLoss, {"label_smoothing": 0.2}, *segmentation),
    "pixels, class weights": (nn.CrossEntropyLoss, {"weight": class_weights}, *segmentation),
    "soft labels": (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, logits, probabilities),
    "half precision": (nn.CrossEntropyLoss, {"label_smoothing": 0.1}, logits.bfloat16(), classes),
    "NLL": (nn.NLLLoss, {"weight": class_weights}, logits.log_softmax(1), classes),
    "MSE": (nn.MSELoss, {}, images, probabilities),
    "L1": (nn.L1Loss, {}, images, probabilities),
    "smooth L1": (nn.SmoothL1Loss, {"beta": 0.3}, images, probabilities),
    "Huber": (nn.HuberLoss, {"delta": 0.3}, images, probabilities),
    "BCE": (nn.BCELoss, {}, images.sigmoid(), probabilities),
    "BCE with logits": (nn.BCEWithLogitsLoss, {"pos_weight": class_weights}, images, probabilities),
    "KL": (nn.KLDivLoss, {}, images.log_softmax(1), probabilities),
    "Poisson": (nn.PoissonNLLLoss, {}, images, probabilities),
    "soft margin": (nn.SoftMarginLoss, {}, images, signs),
    "hinge embedding": (nn.HingeEmbeddingLoss, {}, images, signs),
    "multi-label soft margin": (nn.MultiLabelSoftMarginLoss, {}, images, (signs > 0).float()),
    "multi-label margin": (nn.MultiLabelMarginLoss, {}, images, torch.randint(13, (37, 13))),
    "multi-margin": (nn.MultiMarginLoss, {}, images, classes),
}


class Subclass(nn.Module):
    """A loss of torch inside a user's, which nothing is known about."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.reduction = inner, inner.reduction

    def forward(self, outputs, targets):
        self.inner.reduction = self.reduction
        return self.inner(outputs, targets)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("wrap", [lambda loss: loss, Subclass], ids=["torch's own", "the user's"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("kind", "options", "outputs", "targets"), TORCH_LOSSES.values(), ids=TORCH_LOSSES.keys())
def test_losses_are_the_users_to_the_bit_with_their_gradients(kind, options, outputs, targets, reduction, wrap):
    loss_fn = kind(reduction=reduction, **options)
    theirs, ours = (outputs.clone().requires_grad_() for _ in range(2))
    expected = loss_fn(theirs, targets)
    expected = expected if expected.dim() == 0 else expected.mean()
    (1.7 * expected).backward()
    found, losses = PerExampleLoss(wrap(copy.deepcopy(loss_fn)), "mean").for_training(ours, targets, None)
    (1.7 * found).backward()
    assert torch.equal(found, expected)
    assert torch.equal(ours.grad, theirs.grad)
    loss_fn.reduction = "none"
    assert losses.shape == outputs.shape[:1]
    if loss_fn(outputs, targets).shape == losses.shape:
        assert torch.equal(losses, loss_fn(outputs, targets))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_token_cross_entropy_to_the_bit(reduction, smoothing):
    labels = torch.randint(9, (4, 7)).masked_fill(torch.rand(4, 7) < 0.3, -100)
    theirs, ours = (torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in "ab")
    loss_fn = functools.partial(token_cross_entropy, reduction=reduction, label_smoothing=smoothing)
    expected = loss_fn(theirs, labels)
    expected.backward()
    found, losses = PerExampleLoss(loss_fn, "sum").for_training(ours, labels, None)
    found.backward()
    assert torch.equal(found, expected) and torch.equal(ours.grad, theirs.grad)
    assert torch.allclose(losses, loss_fn(theirs, labels, reduction="none").sum(1).detach())


def test_softmax_over_many_classes_is_computed_once(monkeypatch):
    calls = []
    log_softmax = F.log_softmax
    monkeypatch.setattr(F, "log_softmax", lambda *a, **k: calls.append(1) or log_softmax(*a, **k))
    monkeypatch.setattr(F, "cross_entropy", lambda *a, **k: pytest.fail("evaluated again"))
    PerExampleLoss(nn.CrossEntropyLoss()).for_training(logits, classes, None)
    assert len(calls) == 1


@pytest.mark.parametrize("method", [sb.infobatch(), sb.ledger_backprop(), sb.selective_backprop(0.5)])
def test_one_number_for_a_batch_is_refused_at_once_by_methods_that_go_by_losses(method):
    model = make_model()
    candidates = DataLoader(digits(), 16)
    loader = sb.SelectiveLoader(candidates, model, lambda o, t: F.cross_entropy(o, t), method, num_epochs=2)
    with pytest.raises(ValueError, match="single number"):
        train(loader, model, 1)
    assert loader.stats.batches == 0, "the first one was only looked at"


@pytest.mark.parametrize("method", [sb.traditional(), sb.repeated_random(0.5)])
def test_one_number_for_a_batch_is_trained_on_where_nobody_needs_more(method):
    model, calls = make_model(), []
    loader = sb.SelectiveLoader(
        DataLoader(digits(), 16), model, lambda o, t: calls.append(1) or F.cross_entropy(o, t) + 0.1, method
    )
    for inputs, targets in loader:
        outputs = model(inputs)
        assert torch.equal(loader.loss(outputs, targets), F.cross_entropy(outputs, targets) + 0.1)
    assert len(calls) == loader.stats.batches and not loader.ledger.has_losses()
