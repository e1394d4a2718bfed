import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import selective_backprop as sb
from selective_backprop.pruning.prune import keep_after_pruning, load_scores, save_scores
from selective_backprop.pruning.scores import average_scores, el2n, grand, score_examples
from selective_backprop.testing import global_random_states, model_trace, same
from tests.helpers import Noisy, digits, make_model

NAN = float("nan")


def make_cnn(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


class Counting(nn.Module):
    """Writes a buffer and draws random numbers in eval mode too; its last layer is not the last one defined."""

    def __init__(self, bias=True):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.head = nn.Linear(64, 10, bias=bias)
        self.unused = nn.Linear(64, 10)

    def forward(self, inputs):
        self.calls += 1
        random.random()
        torch.rand(1)
        return self.head(inputs)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(digits())


def shuffled(dataset=None, **options):
    return DataLoader(digits() if dataset is None else dataset, **{"batch_size": 16, "shuffle": True} | options)


# ---- the two measures


def reference_el2n(logits, target):
    """Plain Python; the target is a list of probabilities."""
    exponentials = [math.exp(z - max(logits)) for z in logits]
    return math.sqrt(sum((e / sum(exponentials) - t) ** 2 for e, t in zip(exponentials, target, strict=True)))


@pytest.mark.parametrize("classes", [2, 10])
def test_el2n_of_the_certain_and_of_the_ignorant(classes):
    outputs = torch.zeros(3, classes)
    outputs[0, 0] = outputs[1, 0] = 200.0
    right, wrong, ignorant = el2n(outputs, torch.tensor([0, 1, 1])).tolist()
    assert right == 0
    assert wrong == pytest.approx(math.sqrt(2))
    assert ignorant == pytest.approx(math.sqrt(1 - 1 / classes))


def test_el2n_is_the_reference_for_indices_and_for_soft_targets():
    outputs, indices = 3 * torch.randn(9, 5), torch.arange(9) % 5
    soft = torch.rand(9, 5).softmax(1)
    one_hot = F.one_hot(indices, 5)
    rows = outputs.tolist()
    for targets, probabilities in [(indices, one_hot), (one_hot, one_hot), (soft, soft)]:
        wanted = [reference_el2n(*pair) for pair in zip(rows, probabilities.tolist(), strict=True)]
        assert el2n(outputs, targets).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_still_tells_easy_examples_apart(dtype):
    outputs = torch.tensor([[9.0, 0.0], [10.0, 0.0]], dtype=dtype)
    scores = el2n(outputs, torch.tensor([0, 0]))
    assert scores.dtype == torch.float32
    assert scores[0] > scores[1] > 0
    large = torch.full((2, 4), 300.0, dtype=dtype)  # squares that float16 cannot hold
    assert grand(outputs, torch.tensor([1, 1]), large)[0] == pytest.approx(600 * math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_grand_is_the_norm_of_the_gradient_of_the_last_layer(bias, soft):
    layer, features = nn.Linear(7, 4, bias=bias), torch.randn(6, 7)
    targets = torch.rand(6, 4).softmax(1) if soft else torch.arange(6) % 4
    wanted = []
    for i in range(6):
        loss = F.cross_entropy(layer(features[i : i + 1]), targets[i : i + 1])
        gradients = torch.autograd.grad(loss, list(layer.parameters()))
        wanted.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
    scores = grand(layer(features), targets, features, bias=bias)
    assert scores.tolist() == pytest.approx(wanted, rel=1e-5)


# ---- one pass over the data


def reference_scores(model, dataset, measure):
    """Example by example, by autograd where it is about gradients."""
    model.eval()
    layer = model[-1]
    scores = []
    for inputs, target in dataset:
        outputs = model(inputs[None])
        if measure == "el2n":
            scores.append(reference_el2n(outputs[0].tolist(), F.one_hot(target, 10).tolist()))
        else:
            gradients = torch.autograd.grad(F.cross_entropy(outputs, target[None]), list(layer.parameters()))
            scores.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
    return scores


@pytest.mark.parametrize("options", [{"shuffle": False}, {"batch_size": 7}])
@pytest.mark.parametrize("measure", ["el2n", "grand"])
def test_scores_are_by_id_in_eval_mode(measure, options):
    scores = score_examples(make_model(), shuffled(**options), measure=measure)
    assert scores.shape == (203,)
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    assert scores.tolist() == pytest.approx(reference_scores(make_model(), digits(), measure), rel=1e-4)


def test_what_the_loader_does_not_offer_is_nan():
    everything = score_examples(make_model(), shuffled())
    sampler = SubsetRandomSampler(range(50, 90))
    part = score_examples(make_model(), shuffled(shuffle=False, sampler=sampler))
    assert torch.equal(part.isnan(), torch.tensor([not 50 <= i < 90 for i in range(203)]))
    assert torch.allclose(part[50:90], everything[50:90], atol=1e-6)


def test_forward_and_dicts():
    model, (inputs, targets) = make_model(), digits().tensors
    wanted = score_examples(model, shuffled())
    turned = shuffled(TensorDataset(targets, inputs))
    got = score_examples(model, turned, forward=lambda model, batch: (model(batch[1]), batch[0]))
    assert torch.allclose(got, wanted, atol=1e-6)
    dicts = shuffled([{"input": x, "labels": y} for x, y in digits()])
    named = score_examples(model, dicts, forward=lambda model, batch: (model(batch["input"]), batch["labels"]))
    assert torch.allclose(named, wanted, atol=1e-6)


@pytest.mark.parametrize("measure", ["el2n", "grand"])
@pytest.mark.parametrize("make", [make_model, Counting])
def test_scoring_leaves_no_trace(make, measure):
    model, generator = make(), torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    layer = model.head if make is Counting else None
    for options in ({"generator": generator}, {}):  # the order comes from the generator, or from torch's global state
        loader = shuffled(Noisy(), **options)
        before = model_trace(model), global_random_states(), generator.get_state()
        score_examples(model, loader, measure=measure, last_layer=layer)
        assert same(before, (model_trace(model), global_random_states(), generator.get_state()))
    assert not any(module._forward_hooks for module in model.modules())


def test_an_error_leaves_no_trace_either():
    model, generator = make_model(), torch.Generator().manual_seed(5)
    loader = shuffled(Noisy(), generator=generator)

    def fails(model, batch):
        model(batch[0])
        raise OSError("on purpose")

    before = model_trace(model), global_random_states(), generator.get_state()
    with pytest.raises(OSError, match="on purpose"):
        score_examples(model, loader, measure="grand", forward=fails)
    assert same(before, (model_trace(model), global_random_states(), generator.get_state()))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("bias", [True, False])
def test_grand_by_a_layer_of_ones_choice(bias):
    model, (inputs, targets) = Counting(bias), digits().tensors
    scores = score_examples(model, shuffled(), measure="grand", last_layer=model.head)
    wanted = grand(model.head(inputs), targets, inputs, bias=bias)
    assert torch.allclose(scores, wanted, rtol=1e-5)


def with_nan(*ids):
    inputs, targets = digits().tensors
    inputs = inputs.clone()
    inputs[list(ids)] = NAN
    return TensorDataset(inputs, targets)


def same_layer_twice():
    layer = nn.Linear(64, 64)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("score", "error", "message"),
    [
        (lambda: score_examples(make_model(), shuffled(), measure="loss"), ValueError, "'loss'"),
        (lambda: score_examples(make_model(), [digits()[:8]]), ValueError, "list"),
        (lambda: score_examples(make_model(), DataLoader(Stream(), batch_size=4)), ValueError, "ids"),
        (
            lambda: score_examples(make_model(), DataLoader(digits(8), batch_size=9, drop_last=True)),
            ValueError,
            "empty",
        ),
        (lambda: score_examples(nn.Flatten(), shuffled(), measure="grand"), ValueError, "nn.Linear"),
        (
            lambda: score_examples(make_model(), shuffled(), measure="grand", last_layer=nn.Linear(16, 10)),
            ValueError,
            "last_layer",
        ),
        (
            lambda: score_examples(m := make_model(), shuffled(), measure="grand", last_layer=m[0]),
            ValueError,
            r"\(16, 10\).*\(16, 32\).*last_layer=",
        ),
        (lambda: score_examples(same_layer_twice(), shuffled(), measure="grand"), ValueError, r"\(16, 64\)"),
        (
            lambda: score_examples(make_model(), shuffled(with_nan(3, 77), shuffle=False)),
            ValueError,
            r"nan .* \[3\]",
        ),
        (
            lambda: score_examples(make_model(), shuffled(), forward=lambda m, b: ({"logits": m(b[0])}, b[1])),
            TypeError,
            "pass forward=",
        ),
        (
            lambda: score_examples(make_model(), shuffled(), forward=lambda m, b: (m(b[0])[:5], b[1][:5])),
            ValueError,
            "5 .* 16",
        ),
        (lambda: el2n(torch.zeros(4, 3), torch.zeros(4)), ValueError, r"\(4,\)"),
        (lambda: el2n(torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64)), ValueError, r"\(5,\)"),
        (
            lambda: grand(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 2, 5)),
            ValueError,
            r"\(4, 2, 5\)",
        ),
    ],
)
def test_what_cannot_be_scored(score, error, message):
    with pytest.raises(error, match=message):
        score()


# ---- several models


def test_untrained_models_get_successive_seeds_and_are_averaged():
    seeds = []

    def make(seed):
        seeds.append(seed)
        return make_model(seed)

    scores = average_scores(make, shuffled(), nn.CrossEntropyLoss(), num_models=3, epochs=0, seed=7)
    assert seeds == [7, 8, 9]
    wanted = sum(score_examples(make_model(seed), shuffled()) for seed in seeds) / 3
    assert torch.allclose(scores, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("make_optimizer", "settings"),
    [
        (None, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
        (functools.partial(torch.optim.SGD, lr=0.02), {"lr": 0.02}),
    ],
    ids=["default", "own"],
)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_each_model_is_trained_as_by_the_plain_loop(make_optimizer, settings, reduction):
    torch.manual_seed(3)
    loss_fn = nn.CrossEntropyLoss(reduction=reduction)
    got = average_scores(
        make_model, shuffled(), loss_fn, num_models=1, epochs=2, seed=4, make_optimizer=make_optimizer, measure="grand"
    )
    torch.manual_seed(3)
    model, loader = make_model(4).train(), shuffled()
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    for inputs, targets in itertools.chain(loader, loader):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert torch.equal(got, score_examples(model, loader, measure="grand"))


def test_examples_offered_to_some_models_only_are_averaged_over_those():
    halves = itertools.cycle([range(0, 120), range(80, 200)])

    class Alternating:
        def __iter__(self):
            return iter(next(halves))

        def __len__(self):
            return 120

    loader = shuffled(shuffle=False, sampler=Alternating())
    scores = average_scores(make_model, loader, nn.CrossEntropyLoss(), num_models=2, epochs=0)
    first, second = (score_examples(make_model(seed), shuffled()) for seed in (0, 1))
    assert torch.allclose(scores[:80], first[:80], atol=1e-6)
    assert torch.allclose(scores[80:120], (first + second)[80:120] / 2, atol=1e-6)
    assert torch.allclose(scores[120:200], second[120:200], atol=1e-6)
    assert scores[200:].isnan().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_models": 0}, "num_models must be at least 1 and epochs at least 0, got 0 and 10"),
        ({"epochs": -1}, "num_models must be at least 1 and epochs at least 0, got 10 and -1"),
        ({"measure": "loss"}, "measure must be 'el2n' or 'grand', got 'loss'"),
        ({"score_loader": [digits()[:8]]}, "scores are stored by id"),
        ({"score_loader": shuffled(with_nan(5))}, r"not finite: the el2n score is nan for the examples with ids \[5\]"),
    ],
)
def test_what_cannot_be_averaged_fails_before_any_training(options, message):
    def loss_fn(outputs, targets):
        raise AssertionError("trained")

    with pytest.raises(ValueError, match=message):
        average_scores(make_model, shuffled(), loss_fn, **options)


@functools.cache
def mislabelled():
    """Digits of which every 20th has a wrong label."""
    inputs, targets = digits(800).tensors
    wrong = torch.arange(800) % 20 == 0
    return TensorDataset(inputs, torch.where(wrong, (targets + 1) % 10, targets)), wrong


@functools.cache
def scores_of(make, measure):
    torch.manual_seed(0)
    loader = shuffled(mislabelled()[0], batch_size=32)
    return average_scores(make, loader, nn.CrossEntropyLoss(), num_models=3, epochs=4, measure=measure)


@pytest.mark.parametrize("measure", ["el2n", "grand"])
@pytest.mark.parametrize("make", [make_model, make_cnn])
def test_wrong_labels_score_high_and_a_band_leaves_them_out(make, measure):
    scores, (_, wrong) = scores_of(make, measure), mislabelled()
    dropped = ~keep_after_pruning(scores, 0.0, highest=0.1)
    assert int(dropped.sum()) == 80
    assert float(dropped[wrong].float().mean()) > 0.8  # by chance 0.1
    assert bool(keep_after_pruning(scores, 0.3)[wrong].all())


@pytest.mark.parametrize("measure", ["el2n", "grand"])
def test_two_architectures_agree_on_what_is_easy(measure):
    mlp, cnn = scores_of(make_model, measure), scores_of(make_cnn, measure)
    assert sb.functional.spearman(mlp, cnn) > 0.3


# ---- files


def test_scores_come_back_from_a_file_to_the_bit(tmp_path):
    scores = torch.rand(1000)
    scores[3] = NAN
    save_scores(scores, tmp_path / "scores.pt")
    assert same(load_scores(tmp_path / "scores.pt"), scores)
    assert same(load_scores(str(tmp_path / "scores.pt"), num_examples=1000), scores)
    save_scores(scores[:10], tmp_path / "few.pt")
    assert (tmp_path / "few.pt").stat().st_size < (tmp_path / "scores.pt").stat().st_size - 3000


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text("id,score\n0,0.5\n"), "wrong.pt is damaged, or was not written by this package"),
        (lambda path: path.write_bytes(b""), "wrong.pt is damaged, or was not written by this package"),
        (lambda path: torch.save(torch.rand(5), path), "not written by this package"),
        (
            lambda path: torch.save({"kind": "scores 2"}, path),
            "wrong.pt holds 'scores 2', where 'scores 1' is expected",
        ),
        (lambda path: save_scores(torch.rand(4), path), "has scores of 4 examples, the data set has 5"),
        (
            lambda path: save_scores(torch.rand(4, 2), path),
            r"scores must be 1-D, one number per id, got shape \(4, 2\)",
        ),
    ],
)
def test_wrong_files(tmp_path, write, message):
    path = tmp_path / "wrong.pt"
    with pytest.raises(ValueError, match=message):
        write(path)
        load_scores(path, num_examples=5)


# ---- pruning


def reference_keep(scores, prune, highest, classes):
    keep = [True] * len(scores)
    for label in set(classes):
        ids = [i for i, score in enumerate(scores) if classes[i] == label and not math.isnan(score)]
        ids.sort(key=lambda i: (scores[i], i))
        low = min(round(prune * len(ids)), max(0, len(ids) - 1))
        high = min(round(highest * len(ids)), max(0, len(ids) - 1 - low))
        for i in ids[:low] + ids[len(ids) - high :]:
            keep[i] = False
    return keep


def test_pruning_drops_the_lowest_and_leaves_the_scores_alone():
    scores = torch.tensor([0.4, 0.1, 0.3, 0.2])
    given = scores.clone()
    assert keep_after_pruning(scores, 0.25).tolist() == [True, False, True, True]
    assert keep_after_pruning(scores, 0.25, highest=0.25).tolist() == [False, False, True, True]
    assert torch.equal(scores, given)


def test_ties_go_by_id():
    assert keep_after_pruning(torch.ones(100), 0.3, highest=0.2).tolist() == [False] * 30 + [True] * 50 + [False] * 20


@pytest.mark.parametrize("classes", [None, [0] * 6])
def test_what_was_never_scored_is_kept_and_does_not_count(classes):
    scores = torch.tensor([NAN, 0.2, NAN, 0.1, 0.3, 0.4])
    assert keep_after_pruning(scores, 0.5, classes=classes).tolist() == [True, False, True, False, True, True]
    assert keep_after_pruning(torch.full((6,), NAN), 0.9, classes=classes).all()


def test_an_easy_class_is_not_lost_when_classes_are_balanced():
    scores, classes = torch.arange(20.0), torch.arange(20) // 10
    assert int(keep_after_pruning(scores, 0.5)[:10].sum()) == 0
    assert keep_after_pruning(scores, 0.5, classes=classes).tolist() == ([False] * 5 + [True] * 5) * 2


@pytest.mark.parametrize("make", [torch.tensor, np.array, list, tuple])
def test_scores_may_be_a_tensor_an_array_or_a_list(make, tmp_path):
    scores = make([0.4, 0.1, 0.3, 0.2])
    assert sb.diet(method=sb.traditional(), scores=scores).keep.tolist() == [True, False, True, True]
    save_scores(scores, tmp_path / "scores.pt")
    assert load_scores(tmp_path / "scores.pt").tolist() == pytest.approx([0.4, 0.1, 0.3, 0.2])


@pytest.mark.parametrize("scores", ["0.5", ["a", "b"], [[1.0], [1.0, 2.0]], [None, 1.0], torch.rand(4).to_sparse()])
def test_scores_that_are_no_numbers(scores):
    with pytest.raises(TypeError, match="scores must be numbers"):
        sb.diet(method=sb.traditional(), scores=scores)


@pytest.mark.parametrize("seed", range(10))
def test_pruning_is_the_reference(seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 60, (1,), generator=generator))
    scores = torch.randint(8, (count,), generator=generator) / 8  # many ties
    scores[torch.rand(count, generator=generator) < 0.1] = NAN
    classes = torch.randint(-2, 3, (count,), generator=generator)
    prune, highest = (torch.rand(2, generator=generator, dtype=torch.float64) / 2).tolist()
    values, labels = scores.tolist(), classes.tolist()
    balanced = reference_keep(values, prune, highest, labels)
    assert keep_after_pruning(scores, prune, highest=highest, classes=classes).tolist() == balanced
    assert keep_after_pruning(scores, prune, highest=highest, classes=labels).tolist() == balanced
    overall = reference_keep(values, prune, highest, [0] * count)
    assert keep_after_pruning(scores, prune, highest=highest).tolist() == overall


@pytest.mark.parametrize(
    ("prune", "message"),
    [
        (lambda: keep_after_pruning(torch.rand(4), -0.1), "-0.1"),
        (lambda: keep_after_pruning(torch.rand(4), 0.5, highest=0.5), "0.5 and 0.5"),
        (lambda: keep_after_pruning(torch.rand(4), NAN), "nan"),
        (lambda: keep_after_pruning(torch.rand(4, 1), 0.5), r"\(4, 1\)"),
        (lambda: keep_after_pruning(torch.rand(4), 0.5, classes=[0, 1, 0]), r"\(3,\)"),
    ],
)
def test_what_cannot_be_pruned(prune, message):
    with pytest.raises(ValueError, match=message):
        prune()
