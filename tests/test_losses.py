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


@pytest.mark.parametrize(
    ("loss_fn", "divisor"),
    [
        (nn.CrossEntropyLoss(), 6.0),
        (nn.CrossEntropyLoss(reduction="sum"), 1.0),
        (nn.CrossEntropyLoss(weight=class_weights), float(class_weights[targets].sum())),
        (nn.CrossEntropyLoss(ignore_index=2), 5.0),
        (lambda o, t: F.cross_entropy(o, t, reduction="none"), 6.0),
    ],
    ids=["mean", "sum", "class weights", "ignore_index", "per example"],
)
def test_weights_keep_the_scale_of_the_users_loss(loss_fn, divisor):
    weights = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, 1.0])
    loss = PerExampleLoss(loss_fn)
    logits = outputs.clone().requires_grad_()
    got, losses = loss.for_training(logits, targets, weights)
    wanted = (weights * loss.per_example(outputs, targets)).sum() / divisor
    assert torch.allclose(got, wanted)
    got.backward()
    assert torch.equal(logits.grad[0], torch.zeros(4)), "weight 0 has no gradient"
    assert losses.shape == (6,)


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


def test_one_value_per_example_needs_no_reducer():
    assert PerExampleLoss(nn.MSELoss()).per_example(torch.ones(3, 1), torch.zeros(3, 1)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PerExampleLoss("mse"), TypeError, "loss_fn must be callable, got str"),
        (
            lambda: PerExampleLoss(F.mse_loss, "median"),
            ValueError,
            "must be one of mean, sum, max or a function, got 'm",
        ),
        (
            lambda: PerExampleLoss(lambda o, t: F.cross_entropy(o, t)).per_example(outputs, targets),
            ValueError,
            "returned a single number for the whole batch, but one loss per example is needed",
        ),
        (
            lambda: PerExampleLoss(nn.MSELoss()).per_example(torch.ones(3, 2), torch.ones(3, 2)),
            ValueError,
            r"shape \(3, 2\) for 3 examples: pass reducer='mean' or 'sum' or 'max'",
        ),
        (
            lambda: PerExampleLoss(nn.MSELoss()).per_example(torch.ones(3), torch.ones(3), 4),
            ValueError,
            r"shape \(3,\) for 4 examples",
        ),
        (
            lambda: PerExampleLoss(lambda o, t: 1.5).per_example(outputs, targets),
            TypeError,
            "must return a tensor with one loss per example, got float",
        ),
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


def test_a_certain_token_counts_though_its_loss_is_zero():
    certain = torch.tensor([[[100.0, 0.0], [0.0, 0.0]]])
    found = PerExampleLoss(token_cross_entropy, "mean").per_example(certain, torch.tensor([[0, 1]]))
    torch.testing.assert_close(found, torch.tensor([0.5]) * torch.tensor(2.0).log())


def test_weights_of_sequences_keep_the_scale_of_the_mean_over_tokens():
    weights = torch.tensor([2.0, 0.5, 1.0])
    loss, _ = PerExampleLoss(token_cross_entropy, "mean").for_training(token_logits, token_labels, weights)
    torch.testing.assert_close(loss, (by_token.sum(1) * weights).sum() / 6)


def test_mean_of_largest_of_none():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        mean_of_largest(0)
