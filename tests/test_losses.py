import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from selective_backprop.losses import PerExampleLoss, mean_of_largest, token_cross_entropy

outputs, targets = torch.randn(6, 4), torch.arange(6) % 4
class_weights = torch.tensor([0.1, 1.0, 2.0, 5.0])
expected = F.cross_entropy(outputs, targets, reduction="none")


class OwnLoss(nn.Module):
    def forward(self, outputs, targets, reduction="mean"):
        return F.cross_entropy(outputs, targets, reduction=reduction)


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        F.cross_entropy,
        functools.partial(F.cross_entropy, reduction="sum"),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
        OwnLoss(),
    ],
    ids=["module", "module sum", "module none", "function", "partial", "per example", "module with reduction="],
)
def test_any_loss_per_example(loss_fn):
    assert torch.equal(PerExampleLoss(loss_fn).per_example(outputs, targets), expected)


def test_the_users_module_is_not_changed():
    module = nn.CrossEntropyLoss()
    PerExampleLoss(module).per_example(outputs, targets)
    assert module.reduction == "mean"


def test_a_module_moved_later_is_moved_here_too():
    module = nn.CrossEntropyLoss(weight=class_weights)
    loss = PerExampleLoss(module)
    module.double()
    assert loss.per_example(outputs.double(), targets).dtype == torch.float64


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=class_weights),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(ignore_index=2, label_smoothing=0.1),
    ],
    ids=["mean", "class weights", "sum", "ignore_index and smoothing"],
)
def test_without_weights_it_is_the_users_loss_to_the_bit(loss_fn):
    loss, losses = PerExampleLoss(loss_fn).for_training(outputs, targets, None)
    assert torch.equal(loss, loss_fn(outputs, targets))
    assert not losses.requires_grad
    assert losses.shape == (6,)


class OwnSquares(nn.Module):
    def forward(self, outputs, targets, reduction="mean"):
        return F.mse_loss(outputs, targets, reduction=reduction)


weights = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, 1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_it_is_the_users_loss_to_the_bit(dtype):
    model = nn.Linear(4, 1000)
    inputs, labels = torch.randn(8, 4), torch.arange(8) * 7
    with torch.autocast("cpu", dtype):
        logits = model(inputs)
        pairs = [(PerExampleLoss(nn.CrossEntropyLoss()).for_training(logits, labels, None)[0], nn.CrossEntropyLoss())]
        pairs += [(PerExampleLoss(F.cross_entropy).for_training(logits, labels, None)[0], F.cross_entropy)]
        for found, loss_fn in pairs:
            expected = loss_fn(logits, labels)
            assert torch.equal(found, expected)
            gradients = [torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for loss in (found, expected)]
            assert torch.equal(*gradients)


def weighted_divisor(counts):
    """An example that stands for w others brings w times its part of what the loss divides by."""
    return float((weights * counts).sum() / weights.mean())


@pytest.mark.parametrize(
    ("loss_fn", "divisor"),
    [
        (nn.CrossEntropyLoss(), 6.0),
        (nn.CrossEntropyLoss(reduction="sum"), 1.0),
        (nn.CrossEntropyLoss(weight=class_weights), weighted_divisor(class_weights[targets])),
        (functools.partial(F.cross_entropy, weight=class_weights), weighted_divisor(class_weights[targets])),
        (nn.CrossEntropyLoss(ignore_index=2), weighted_divisor((targets != 2).float())),
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), 6.0),
        (OwnLoss(), 6.0),
    ],
    ids=["mean", "sum", "class weights", "partial", "ignore_index", "per example", "module with reduction="],
)
def test_weights_keep_the_scale_of_the_users_loss(loss_fn, divisor):
    loss = PerExampleLoss(loss_fn)
    logits = outputs.clone().requires_grad_()
    got, losses = loss.for_training(logits, targets, weights)
    wanted = (weights * loss.per_example(outputs, targets)).sum() / divisor
    assert torch.allclose(got, wanted)
    got.backward()
    assert torch.equal(logits.grad[0], torch.zeros(4)), "weight 0 has no gradient"
    assert losses.shape == (6,)


@pytest.mark.parametrize("ignored", [-100, 255])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_where_the_ignored_target_is_no_class_and_classes_have_weights(ignored, smoothing):
    labels = torch.tensor([0, 1, ignored, 3, 0, 1])
    own = nn.CrossEntropyLoss(weight=class_weights, ignore_index=ignored, label_smoothing=smoothing)
    loss = PerExampleLoss(own)
    counts = torch.tensor([0.1, 1.0, 0.0, 5.0, 0.1, 1.0])
    wanted = (weights * loss.per_example(outputs, labels)).sum() / weighted_divisor(counts)
    torch.testing.assert_close(loss.for_training(outputs, labels, weights)[0], wanted)


def own_class_weights(outputs, targets, reduction="mean"):
    return F.cross_entropy(outputs, targets, class_weights, reduction=reduction)


def with_penalty(outputs, targets, reduction="mean"):
    losses = F.cross_entropy(outputs, targets, reduction=reduction)
    return losses if reduction == "none" else losses + 1e-3 * class_weights.square().sum()


def ctc(log_probs, targets, reduction="mean"):
    """Its mean divides each loss by the length of its target first; its losses without reduction are not divided."""
    lengths = torch.tensor([1, 4])
    return F.ctc_loss(log_probs, targets, torch.tensor([9, 9]), lengths, reduction=reduction)


def mean_of_sequences(logits, labels, reduction="mean"):
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return losses if reduction == "none" else (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()


@pytest.mark.parametrize(
    ("loss_fn", "outputs", "targets"),
    [
        (own_class_weights, outputs, targets),
        (with_penalty, outputs, targets),
        (ctc, torch.zeros(9, 2, 5).log_softmax(2), torch.tensor([[1, 1, 1, 1], [1, 2, 3, 4]])),
    ],
    ids=["class weights", "penalty", "ctc"],
)
def test_weights_are_refused_if_what_the_loss_divides_by_is_not_known(loss_fn, outputs, targets):
    loss = PerExampleLoss(loss_fn, "mean")
    assert torch.equal(loss.for_training(outputs, targets, None)[0], loss_fn(outputs, targets)), "fine without weights"
    with pytest.raises(ValueError, match="return one loss per example"):
        loss.for_training(outputs, targets, torch.linspace(1, 2, len(targets)))


def test_weights_of_a_mean_of_sequence_means():
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[1, 2, 3], [1, -100, -100]])
    got, losses = PerExampleLoss(mean_of_sequences, "mean").for_training(logits, labels, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(got, (losses[0] + 2 * losses[1]) / 2)


def test_weights_when_all_losses_are_zero():
    loss, _ = PerExampleLoss(nn.MSELoss()).for_training(torch.zeros(3), torch.zeros(3), torch.ones(3) * 2)
    assert loss == 0


tokens, labels = torch.randn(5, 7, 9), torch.randint(9, (5, 9))


@pytest.mark.parametrize(
    ("reducer", "reference"),
    [
        ("mean", lambda raw: raw.mean(1)),
        ("sum", lambda raw: raw.sum(1)),
        ("max", lambda raw: raw.max(1).values),
        (lambda raw: raw.topk(3, dim=1).values.mean(1), lambda raw: raw.sort(1).values[:, -3:].mean(1)),
    ],
)
def test_reducers_of_token_losses(reducer, reference):
    got = PerExampleLoss(F.mse_loss, reducer).per_example(tokens.mean(1), labels.float())
    assert torch.allclose(got, reference((tokens.mean(1) - labels) ** 2))


def test_weights_apply_to_every_token_whatever_the_reducer_of_the_score():
    prediction = torch.randn(4, 9)
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0])
    got, _ = PerExampleLoss(nn.MSELoss(), "max").for_training(prediction, torch.zeros(4, 9), weights)
    assert torch.allclose(got, (weights[:, None] * prediction**2).mean())


@pytest.mark.parametrize(
    ("loss_fn", "shape"),
    [(nn.MSELoss(), (6, 3, 8, 8)), (F.l1_loss, (6, 5)), (nn.BCEWithLogitsLoss(), (6, 6)), (OwnSquares(), (6, 5))],
    ids=["images", "function", "as many labels as examples", "own module with reduction="],
)
def test_several_numbers_per_example_are_averaged_by_default(loss_fn, shape):
    generator = torch.Generator().manual_seed(0)
    found, wanted = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    loss = PerExampleLoss(loss_fn)
    trained, losses = loss.for_training(found, wanted, None)
    alone = torch.stack([loss_fn(found[i : i + 1], wanted[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(losses, alone)
    assert torch.equal(loss.per_example(found, wanted), losses)
    assert torch.equal(trained, loss_fn(found, wanted)), "the user's own loss, to the bit"
    torch.testing.assert_close(loss.for_training(found, wanted, weights)[0], (weights * alone).mean())


def test_one_value_per_example_needs_no_reducer():
    assert PerExampleLoss(nn.MSELoss()).per_example(torch.ones(3, 1), torch.zeros(3, 1)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PerExampleLoss("mse"), TypeError, "str"),
        (lambda: PerExampleLoss(F.mse_loss, "median"), ValueError, "mean, sum, max"),
        (
            lambda: PerExampleLoss(lambda o, t: F.cross_entropy(o, t)).per_example(outputs, targets),
            ValueError,
            "single number",
        ),
        (
            lambda: PerExampleLoss(nn.MSELoss(reduction="sum")).per_example(torch.ones(3, 2), torch.ones(3, 2)),
            ValueError,
            r"\(3, 2\) for 3 .*PerExampleLoss\(loss_fn, reducer\)",
        ),
        (
            lambda: PerExampleLoss(nn.CrossEntropyLoss()).per_example(token_logits.transpose(1, 2), token_labels),
            ValueError,
            r"\(3, 4\) for 3 examples",
        ),
        (
            lambda: PerExampleLoss(lambda o, t, reduction="mean": o - t).per_example(torch.ones(3, 1), torch.ones(3)),
            ValueError,
            r"\(3, 1\) .*\(3,\)",
        ),
        (
            lambda: PerExampleLoss(nn.MSELoss()).per_example(torch.ones(3), torch.ones(3), 4),
            ValueError,
            r"\(3,\) for 4 examples",
        ),
        (lambda: PerExampleLoss(nn.CTCLoss()), TypeError, "CTCLoss"),
        (lambda: PerExampleLoss(lambda o: o), TypeError, "positional"),
        (
            lambda: PerExampleLoss(token_cross_entropy).per_example((outputs, None), targets),
            TypeError,
            "pass forward=",
        ),
        (lambda: PerExampleLoss(lambda o, t: 1.5).per_example(outputs, targets), TypeError, "float"),
    ],
)
def test_bad_losses(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Three sequences of up to four tokens, padded; one is all padding.
token_labels = torch.tensor([[1, 2, 0, 3], [2, 1, -100, -100], [-100, -100, -100, -100]])
token_logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)) * 3
by_token = F.cross_entropy(token_logits.transpose(1, 2), token_labels, reduction="none")
PADDED = {
    "classes last": (token_cross_entropy, token_logits),
    "classes last, partial": (functools.partial(token_cross_entropy, label_smoothing=0.0), token_logits),
    "module": (nn.CrossEntropyLoss(), token_logits.transpose(1, 2)),
    "function": (F.cross_entropy, token_logits.transpose(1, 2)),
}


@pytest.mark.parametrize(("loss_fn", "outputs"), PADDED.values(), ids=PADDED.keys())
@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        ("mean", [by_token[0].mean(), by_token[1, :2].mean(), 0]),
        ("sum", [by_token[0].sum(), by_token[1].sum(), 0]),
        ("max", [by_token[0].max(), by_token[1].max(), 0]),
        (mean_of_largest(3), [by_token[0].sort().values[1:].mean(), by_token[1, :2].mean(), 0]),
        (mean_of_largest(9), [by_token[0].mean(), by_token[1, :2].mean(), 0]),
        (lambda raw: raw[:, 0], [by_token[0, 0], by_token[1, 0], 0]),
        (lambda raw, mask: mask.sum(1).float(), [4, 2, 0]),
    ],
    ids=["mean", "sum", "max", "largest 3", "largest of fewer", "function", "function of the mask"],
)
def test_padding_does_not_count(loss_fn, outputs, reducer, expected):
    found = PerExampleLoss(loss_fn, reducer).per_example(outputs, token_labels)
    torch.testing.assert_close(found, torch.tensor([float(value) for value in expected]))


@pytest.mark.parametrize("ignored", [-100, 0])
def test_padding_does_not_count_if_a_function_hides_its_ignore_index(ignored):
    def hidden(logits, labels):
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=ignored, reduction="none")

    labels = token_labels.clone().clamp(min=1)
    labels[token_labels == -100] = ignored
    losses = hidden(token_logits, labels)
    found = PerExampleLoss(hidden, "mean").per_example(token_logits, labels)
    torch.testing.assert_close(found, torch.stack([losses[0].mean(), losses[1, :2].mean(), torch.tensor(0.0)]))


@pytest.mark.parametrize(
    "pack",
    [
        lambda labels: (labels, 1),
        lambda labels: {"labels": labels, "mask": labels >= 0},
        lambda labels: {"scores": labels.float(), "inside": [(labels >= 0).long()]},
    ],
    ids=["tuple", "labels and mask", "mask only"],
)
def test_padding_does_not_count_if_labels_or_a_mask_are_in_a_container(pack):
    found = PerExampleLoss(lambda losses, _: losses, "mean").per_example(by_token, pack(token_labels))
    torch.testing.assert_close(found, torch.stack([by_token[0].mean(), by_token[1, :2].mean(), torch.tensor(0.0)]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_perfect_predictions_of_several_classes_or_of_some_examples_of_one_count(dtype):
    losses, labels = torch.tensor([[0.0, 3.0, 0.0], [1.0, 0.0, 2.0]]), torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    found = PerExampleLoss(lambda _, targets: losses, "mean").per_example(None, labels)
    torch.testing.assert_close(found, losses.mean(1))


@pytest.mark.parametrize("ignored", [-100, -1, 255])
@pytest.mark.parametrize("pack", [lambda labels: labels, lambda labels: (labels, labels.int())], ids=["alone", "tuple"])
def test_padding_does_not_count_beside_a_token_that_is_certain(ignored, pack):
    losses, labels = torch.tensor([[0.0, 2.0, 4.0], [3.0, 0.0, 0.0]]), torch.tensor([[0, 1, 2], [1, ignored, ignored]])
    found = PerExampleLoss(lambda _, targets: losses, "mean").per_example(None, pack(labels))
    torch.testing.assert_close(found, torch.tensor([2.0, 3.0]))


def test_signs_are_no_marks():
    """A hinge loss of several labels, by which all negative ones are far enough away."""
    losses, signs = torch.tensor([[0.0, 2.0], [0.0, 4.0]]), torch.tensor([[-1, 1], [-1, 1]])
    found = PerExampleLoss(lambda _, targets: losses, "mean").per_example(None, signs)
    torch.testing.assert_close(found, losses.mean(1))


def test_a_certain_token_counts_though_its_loss_is_zero():
    certain = torch.tensor([[[100.0, 0.0], [0.0, 0.0]]])
    found = PerExampleLoss(token_cross_entropy, "mean").per_example(certain, torch.tensor([[0, 1]]))
    torch.testing.assert_close(found, torch.tensor([0.5]) * torch.tensor(2.0).log())


def test_weights_of_sequences_keep_the_scale_of_the_mean_over_tokens():
    weights = torch.tensor([2.0, 0.5, 1.0])
    loss, _ = PerExampleLoss(token_cross_entropy, "mean").for_training(token_logits, token_labels, weights)
    tokens = weights @ torch.tensor([4.0, 2.0, 0.0])
    torch.testing.assert_close(loss, weights.mean() * (by_token.sum(1) * weights).sum() / tokens)
