"""Cheap copies of the model: what they compute, when they follow its weights, and when they step aside."""

import copy
import functools
import io
import itertools
import logging
import threading

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import selective_backprop as sb
from selective_backprop.inference import beside_training
from selective_backprop.lab.models.cifar_resnet import resnet20
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.model_copies import cheap_copy
from selective_backprop.model_copies.folding import Folding
from selective_backprop.scorers import scorer_from
from selective_backprop.scorers.base import fidelity
from selective_backprop.testing import check_scorer, same


def conv_net(bias=False):
    layers = [nn.Conv2d(1, 16, 3, padding=1, bias=bias), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, padding=1, bias=bias), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def linear_net():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False), nn.ReLU(), nn.Linear(32, 10)
    )


class DataDependent(nn.Module):
    """torch.fx cannot trace it."""

    def __init__(self):
        super().__init__()
        self.inner = conv_net()

    def forward(self, x):
        return self.inner(x) if x.sum() > 1e6 else self.inner(x) * 2


class TakesAnotherPath(nn.Module):
    """torch.fx traces it, along a path that real inputs do not take."""

    def __init__(self):
        super().__init__()
        self.inner = conv_net()

    def forward(self, x, scale=None):
        return self.inner(x) if scale is None else self.inner(x) * 3


class Tied(nn.Module):
    """A weight in two layers, one of them with a BatchNorm; a layer called twice; a BatchNorm without statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.b.weight = self.a.weight
        self.norm, self.twice = nn.BatchNorm1d(64), nn.BatchNorm1d(64)
        self.without = nn.BatchNorm1d(64, track_running_stats=False)

    def forward(self, x):
        x = self.norm(self.a(x.flatten(1))) + self.b(x.flatten(1))
        return self.without(self.a(self.twice(self.c(self.c(x)))))


def images(count=64, side=8, channels=1):
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(10, (count,), generator=generator)
    return torch.randn(count, channels, side, side, generator=generator), labels


def candidates_of(data):
    return sb.types.Candidates(data, None, len(data[1]))


def task_of(model):
    return sb.types.Task(model, default_forward, PerExampleLoss(nn.CrossEntropyLoss()))


def train(model, data, steps=3, lr=0.05):
    """Statistics and scales of BatchNorms move too."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    for step in range(steps):
        part = slice(step * 64 % len(data[1]), step * 64 % len(data[1]) + 64)
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][part]), data[1][part]).backward()
        optimizer.step()
    return model


def plain_losses(model, data):
    return sb.scorers.ForwardScorer().score(candidates_of(data), task_of(model))


def forced(kind, **options):
    return sb.scorers.ForwardScorer(model_copy=kind(measure=False, **options))


@pytest.mark.parametrize(
    ("make", "channels", "pairs"),
    [(conv_net, 1, 2), (lambda: conv_net(bias=True), 1, 2), (linear_net, 1, 1), (resnet20, 3, 19)],
    ids=["conv", "conv with bias", "linear", "resnet20"],
)
def test_folding_computes_what_the_model_computes(make, channels, pairs):
    data = images(channels=channels)
    model = train(make(), data, lr=0.01)
    folding = Folding(model)
    assert len(folding.pairs) == pairs
    assert not any(isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) for module in folding.module.modules())
    with torch.no_grad():
        torch.testing.assert_close(folding.module(data[0]), model.eval()(data[0]), atol=1e-5, rtol=1e-5)
    train(model, data)
    folding.follow(model)
    with torch.no_grad():
        torch.testing.assert_close(folding.module(data[0]), model.eval()(data[0]), atol=1e-5, rtol=1e-5)


def test_a_weight_that_somebody_else_uses_is_not_folded():
    data = images()
    model = train(Tied(), data)
    folding = Folding(model)
    assert folding.pairs == []
    with torch.no_grad():
        torch.testing.assert_close(folding.module(data[0]), model.eval()(data[0]))


@pytest.mark.parametrize("kind", [sb.scorers.FoldedCopy, sb.scorers.Int8Copy, sb.scorers.AutocastCopy])
@pytest.mark.parametrize(
    "make", [conv_net, linear_net, Tied, nn.Sequential], ids=["conv", "linear", "tied", "no layer"]
)
def test_no_trace_and_the_same_scores_twice(kind, make):
    data = images()
    model = make() if make is not nn.Sequential else nn.Sequential(nn.Flatten(), nn.Softmax(1))
    if make is not nn.Sequential:
        train(model, data)
        next(model.parameters()).requires_grad_(False)
    engine = torch.backends.quantized.engine
    check_scorer(forced(kind), candidates_of(data), task_of(model))
    assert torch.backends.quantized.engine == engine
    assert [parameter.requires_grad for parameter in model.parameters()] == [
        i > 0 for i, _ in enumerate(model.parameters())
    ]


@pytest.mark.parametrize("kind", [sb.scorers.FoldedCopy, sb.scorers.Int8Copy])
def test_a_copy_follows_the_weights_when_it_is_due(kind):
    data = images()
    model = train(conv_net(), data)
    options = {"calibration_batches": 1} if kind is sb.scorers.Int8Copy else {}
    scorer = forced(kind, refresh_every=3, **options)
    rounds = []
    for _ in range(7):
        rounds.append(scorer.score(candidates_of(data), task_of(model)))
        train(model, data, steps=1)
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(rounds)]
    assert changed == [False, False, True, False, False, True]
    exact = plain_losses(model, data)
    again = [forced(kind, **options).score(candidates_of(data), task_of(model)) for _ in range(2)]
    assert torch.equal(*again)
    torch.testing.assert_close(again[0], exact, **({"atol": 0.3, "rtol": 0.1} if options else {}))


def test_requantised_weights_are_those_of_a_new_copy():
    """In place is a shortcut, with the same result where ranges of activations do not change."""
    data = images()
    model = train(conv_net(), data)
    scorer = forced(sb.scorers.Int8Copy, refresh_every=1, calibration_batches=1)
    scorer.score(candidates_of(data), task_of(model))
    with torch.no_grad():
        model[-1].weight.mul_(-1)
        model[-1].bias.zero_()
    found = scorer.score(candidates_of(data), task_of(model))
    new = forced(sb.scorers.Int8Copy).score(candidates_of(data), task_of(model))
    assert torch.equal(found, new)


def test_ranges_of_activations_are_observed_again():
    """Inputs ten times as large: cut off at the old ranges until the next calibration, and not after it."""
    (inputs, labels), model = images(), train(conv_net(), images())
    scorer = forced(sb.scorers.Int8Copy, calibration_batches=1, calibrate_every=3)
    scorer.score(candidates_of((inputs, labels)), task_of(model))
    larger = (10 * inputs, labels)
    exact = plain_losses(model, larger)
    off = [float((scorer.score(candidates_of(larger), task_of(model)) - exact).abs().mean()) for _ in range(3)]
    assert off[0] == off[1] > 5 * off[2]


class Residual(nn.Module):
    """One block. What `shortcut` gives is added to a convolution; `later` may read it once more."""

    def __init__(self, shortcut=lambda x: x, later=lambda result, x: result, deep=True):
        super().__init__()
        self.first, self.conv = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.between = nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 10)
        self.shortcut, self.later, self.deep = shortcut, later, deep

    def forward(self, x):
        x = F.relu(self.first(x))
        summand, inner = self.shortcut(x), F.relu(self.between(x)) if self.deep else x
        result = self.later(torch.relu(self.norm(self.conv(inner)) + summand), summand)
        return self.head(result.mean((2, 3)))


@pytest.mark.parametrize(
    ("fused", "parts"),
    [
        (True, {}),
        (True, {"shortcut": lambda x: F.pad(x[:, :8], (0, 0, 0, 0, 4, 4))}),
        (False, {"deep": False}),  # the convolution reads what it would overwrite
        (False, {"later": lambda result, x: result - 3 * x}),  # what is overwritten is read later
        (False, {"shortcut": lambda x: x[:32], "later": lambda result, x: result - 3 * x.mean()}),  # so is a view of it
        (False, {"shortcut": lambda x: x.mean((2, 3), keepdim=True)}),  # another shape: a crash in oneDNN
    ],
    ids=["block", "padded", "of one convolution", "read later", "view read later", "broadcast"],
)
def test_sums_of_residual_blocks_are_fused_where_that_is_safe(fused, parts):
    data = images(32)
    torch.manual_seed(0)
    model = train(Residual(**parts), data, lr=0.01)
    scorer = forced(sb.scorers.Int8Copy)
    scores = scorer.score(candidates_of(data), task_of(model))
    assert scorer.model_copy.used
    copied = scorer.model_copy.current(candidates_of(data), task_of(model))
    found = {type(module).__name__ for module in copied.modules()}
    if "onednn" in torch.backends.quantized.supported_engines:
        assert ("ConvAddReLU2d" in found) == fused
    exact = plain_losses(model, data)
    # In 8 bits 0.02 to 0.04 of the spread of losses; where a sum overwrites what is read, 0.1 to 0.6.
    assert float((scores - exact).abs().max()) < 0.06 * float(exact.std())


def test_a_batch_of_one_fuses_nothing():
    """A shortcut of one row has the shape of a result of one row, and no longer that of 32."""
    torch.manual_seed(0)
    model = Residual(shortcut=lambda x: x.mean(0, keepdim=True)).eval()
    scorer, (inputs, labels) = forced(sb.scorers.Int8Copy), images(32)
    scorer.score(candidates_of((inputs[:1], labels[:1])), task_of(model))
    scores = scorer.score(candidates_of((inputs, labels)), task_of(model))
    torch.testing.assert_close(scores, plain_losses(model, (inputs, labels)), atol=0.05, rtol=0.05)


def test_quantising_beside_training_draws_nothing():
    """In a thread of its own it could not give back what it drew: others draw from the same state."""
    model, data = Residual().eval(), images(32)
    scorer = forced(sb.scorers.Int8Copy, calibrate_every=1)  # quantised anew each time
    with beside_training():
        scorer.score(candidates_of(data), task_of(model))
        before = torch.get_rng_state()
        scorer.score(candidates_of(data), task_of(model))
        assert torch.equal(torch.get_rng_state(), before)


def test_copies_in_threads_leave_the_engine_of_the_user():
    engine, data, errors = torch.backends.quantized.engine, images(32), []
    pairs = [(forced(sb.scorers.Int8Copy), Residual().eval()) for _ in range(3)]
    for scorer, model in pairs:  # torch.fx traces in one thread at a time
        scorer.score(candidates_of(data), task_of(model))

    def score(scorer, model):
        try:
            for _ in range(20):
                scorer.score(candidates_of(data), task_of(model))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=score, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert torch.backends.quantized.engine == engine


@pytest.fixture(scope="module")
def trained():
    data = load_digits()
    inputs = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(data.target)
    torch.manual_seed(0)
    return train(conv_net(), (inputs[:1024], targets[:1024]), steps=32), (inputs[1024:], targets[1024:])


@pytest.mark.parametrize(("scoring", "at_least"), [("folded", 0.9999), ("int8", 0.9), ("bf16", 0.9)])
def test_fidelity(trained, scoring, at_least):
    model, data = trained
    scorer = scorer_from(scoring)
    scorer.model_copy.measure = False
    scores = scorer.score(candidates_of(data), task_of(model))
    assert scorer.model_copy.used
    assert scorer.fidelity == fidelity(scores, plain_losses(model, data)) >= at_least


@pytest.mark.parametrize("kind", [sb.scorers.FoldedCopy, sb.scorers.Int8Copy])
@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_saved_copy_goes_on_to_the_bit(kind, stop):
    data = images(256)
    parts = [(data[0][i : i + 32], data[1][i : i + 32]) for i in range(0, 256, 32)]

    def run(model, scorer, parts):
        scores = []
        for part in parts:
            scores.append(scorer.score(candidates_of(part), task_of(model)))
            train(model, part, steps=1)
        return scores

    options = {"calibration_batches": 2} if kind is sb.scorers.Int8Copy else {}
    torch.manual_seed(1)
    model, scorer = train(conv_net(), data), forced(kind, refresh_every=4, **options)
    run(model, scorer, parts[:stop])
    file = io.BytesIO()
    torch.save({"scorer": scorer.state_dict(), "model": model.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed_model, resumed = conv_net(), forced(kind, refresh_every=4, **options)
    resumed_model.load_state_dict(state["model"])
    resumed.load_state_dict(state["scorer"])
    assert same(resumed.state_dict()["model_copy"], state["scorer"]["model_copy"]), "saved again before it was used"
    assert same(run(model, scorer, parts[stop:]), run(resumed_model, resumed, parts[stop:]))


def test_what_is_saved_does_not_change_later():
    data = images()
    model = train(conv_net(), data)
    scorer = forced(sb.scorers.FoldedCopy)
    scorer.score(candidates_of(data), task_of(model))
    state = scorer.state_dict()
    before = copy.deepcopy(state)
    train(model, data)
    scorer.score(candidates_of(data), task_of(model))
    assert same(state, before) and not same(state, scorer.state_dict())


@pytest.mark.parametrize("broken", [DataDependent, TakesAnotherPath])
def test_a_network_that_cannot_be_traced(broken, caplog):
    data = images()
    model = train(broken(), data)
    folded, int8 = forced(sb.scorers.FoldedCopy, refresh_every=2), forced(sb.scorers.Int8Copy)
    exact = plain_losses(model, data)
    with caplog.at_level(logging.INFO, "selective_backprop"):
        for _ in range(2):
            torch.testing.assert_close(folded.score(candidates_of(data), task_of(model)), exact)
            assert torch.equal(int8.score(candidates_of(data), task_of(model)), exact)
    assert [record.getMessage()[:53] for record in caplog.records] == [
        "copying the model without folding its BatchNorms: Tra"
        if broken is DataDependent
        else "copying the model without folding its BatchNorms: Val",
        "scoring with the model itself instead of its int8 cop",
    ]
    assert folded.model_copy.used and not int8.model_copy.used
    resumed = forced(sb.scorers.FoldedCopy, refresh_every=2)
    resumed.load_state_dict(folded.state_dict())
    assert same(resumed.score(candidates_of(data), task_of(model)), folded.score(candidates_of(data), task_of(model)))


def test_a_copy_that_does_not_pay_steps_aside_for_good(monkeypatch, caplog):
    data = images()
    model = train(conv_net(), data)
    scorer = scorer_from("int8")
    times = iter([[1.0, 0.5], [1.0, 200.0]])
    monkeypatch.setattr(cheap_copy, "seconds_of", lambda *_: next(times))
    with caplog.at_level(logging.INFO, "selective_backprop"):
        paying = scorer_from("folded")
        paying.score(candidates_of(data), task_of(model))
        for _ in range(3):
            assert torch.equal(scorer.score(candidates_of(data), task_of(model)), plain_losses(model, data))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "scoring with a copy of the model, folded: it takes 5" in caplog.records[0].getMessage()
    assert "instead of its int8 copy: it takes 2e+05 ms for 64 candidates, the model 1e+03 ms" in caplog.text
    for before in (scorer, paying):  # times has no third entry: a resumed run does not measure
        resumed = sb.scorers.ForwardScorer(model_copy=type(before.model_copy)())
        resumed.load_state_dict(before.state_dict())
        resumed.score(candidates_of(data), task_of(model))
        assert resumed.model_copy.used is before.model_copy.used


def test_measured_for_real():
    data = images(8)
    seconds = cheap_copy.seconds_of([conv_net(), nn.Sequential(nn.Flatten())], candidates_of(data), task_of(conv_net()))
    assert seconds[0] > seconds[1] > 0


def test_an_error_of_the_batch_or_the_loss_is_not_hidden():
    for kind in (sb.scorers.FoldedCopy, sb.scorers.Int8Copy, sb.scorers.AutocastCopy):
        with pytest.raises(TypeError, match="neither a pair"):
            forced(kind).score(sb.types.Candidates([1, 2, 3], None, 3), task_of(conv_net()))


class OfKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, pixels, labels):
        return {"logits": self.layers(pixels), "labels": labels}


@pytest.mark.parametrize("kind", [sb.scorers.FoldedCopy, sb.scorers.Int8Copy, sb.scorers.AutocastCopy])
def test_batches_that_are_dicts(kind):
    inputs, labels = images()
    batch = {"pixels": inputs.flatten(1), "labels": labels}
    loss = PerExampleLoss(lambda outputs, _: F.cross_entropy(outputs["logits"], labels, reduction="none"))
    task = sb.types.Task(OfKeywords(), default_forward, loss)
    scorer = forced(kind)
    check_scorer(scorer, sb.types.Candidates(batch, None, 64), task)
    assert scorer.model_copy.used and scorer.fidelity > 0.9


def test_compiled(trained, monkeypatch):
    """Once, and not again for other weights or for a smaller batch. Without code generation, which takes minutes."""
    model, data, part = copy.deepcopy(trained[0]), images(32), images(20)
    graphs = []
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=lambda g, _: graphs.append(g) or g))
    scorer = forced(sb.scorers.FoldedCopy, compile=True)
    for _ in range(2):
        torch.testing.assert_close(scorer.score(candidates_of(data), task_of(model)), plain_losses(model, data))
        train(model, data)
        torch.testing.assert_close(scorer.score(candidates_of(part), task_of(model)), plain_losses(model, part))
    assert scorer.model_copy.used and scorer.model_copy.seconds > 0
    assert len(graphs) == 1


def test_names():
    first, second = scorer_from("half+int8"), scorer_from("half+int8")
    assert first.scale_factor == 0.5 and isinstance(first.model_copy, sb.scorers.Int8Copy)
    assert first.model_copy is not second.model_copy
    assert scorer_from("compiled").model_copy.compile and not scorer_from("folded").model_copy.compile
    assert [scorer_from(name).model_copy.precision for name in ("bf16", "fp16")] == ["bf16", "fp16"]
    with pytest.raises(ValueError, match="'folded\\+int8' sets the same option twice"):
        scorer_from("folded+int8")


def test_half_resolution_is_what_a_copy_is_calibrated_on(trained):
    model, data = trained
    scorer = scorer_from("half+int8")
    scorer.model_copy.measure = False
    scores = scorer.score(candidates_of(data), task_of(model))
    half = scorer_from("half").score(candidates_of(data), task_of(model))
    assert fidelity(scores, half) > 0.9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sb.scorers.FoldedCopy(refresh_every=0), "refresh_every must be at least 1 candidate batch, got 0"),
        (lambda: sb.scorers.Int8Copy(refresh_every=-1), "refresh_every must be at least 1 candidate batch, got -1"),
        (lambda: sb.scorers.Int8Copy(calibration_batches=0), "calibration_batches must be at least 1, got 0"),
        (lambda: sb.scorers.Int8Copy(calibrate_every=0), "calibrate_every must be at least 1 candidate batch, got 0"),
        (lambda: sb.scorers.AutocastCopy("fp8"), "precision must be one of bf16, fp16, got 'fp8'"),
        (
            lambda: sb.scorers.ForwardScorer("train", model_copy=sb.scorers.FoldedCopy()),
            "in eval mode only, got mode 'train'",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
