"""Targets that are not those given out are an error; those computed from them, example by example, are none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model

OTHERS = r"targets are not those of the batch that the loader gave out.*outputs\.detach\(\), targets"


def one_hot(labels):
    return F.one_hot(labels.long(), 10).float()


def mixed(targets, share=0.7):
    return share * targets + (1 - share) * targets.roll(1, 0)


def one_epoch(loader, change):
    for inputs, targets in loader:
        loader.loss(loader.model(inputs), change(targets))


@pytest.mark.parametrize(
    "change",
    [
        lambda labels: labels.sort().values,
        lambda labels: labels.roll(1),
        lambda labels: digits()[:16][1][: len(labels)],  # of a validation batch
        lambda labels: mixed(one_hot(labels)),
        lambda labels: mixed(0.9 * one_hot(labels) + 0.01),
        lambda labels: mixed(one_hot(labels), 0.4).double(),
        lambda labels: mixed(one_hot(labels).bfloat16(), torch.rand(len(labels), 1).bfloat16()),
    ],
    ids=["sorted", "rolled", "others", "mixed", "mixed and smoothed", "mixed, mostly others", "mixed by shares"],
)
@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.selective_backprop(0.5, unbiased=True), sb.infobatch()])
def test_classes_of_other_examples_are_refused(change, method):
    with pytest.raises(ValueError, match=OTHERS):
        one_epoch(make_loader(method, num_epochs=2), change)


@pytest.mark.parametrize(
    "change",
    [
        torch.clone,
        lambda labels: labels.int().long(),
        lambda labels: (labels + 1) % 10,
        lambda labels: labels.where(torch.arange(len(labels)) % 3 > 0, -100),
        one_hot,
        lambda labels: 0.9 * one_hot(labels) + 0.01,
        lambda labels: (5 * one_hot(labels) + torch.rand(len(labels), 10)).softmax(1),  # of a teacher
    ],
    ids=["copied", "cast", "counted otherwise", "masked", "one-hot", "smoothed", "probabilities of a teacher"],
)
def test_what_is_computed_from_classes_is_fine(change):
    one_epoch(make_loader(sb.ledger_backprop()), change)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_number_for_each_of_two_classes(shape):
    """As for binary cross-entropy, which takes float targets."""
    draws = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 4, generator=draws), torch.randint(2, (64,), generator=draws))

    def loader():
        model = nn.Sequential(nn.Linear(4, 1), nn.Identity() if len(shape) == 2 else nn.Flatten(0))
        return sb.SelectiveLoader(DataLoader(data, 16), model, nn.BCEWithLogitsLoss(), sb.ledger_backprop())

    for change in (mixed, lambda t: t.sort(0).values, lambda t: (torch.arange(16) % 3 > 0).float().view(shape)):
        with pytest.raises(ValueError, match=OTHERS):
            one_epoch(loader(), lambda labels, change=change: change(labels.float().view(shape)))
    for change in (
        torch.clone,
        lambda t: 0.9 * t + 0.05,
        lambda t: 1 - t,
        lambda t: 0.8 * t + 0.2 * torch.rand(t.shape),
    ):
        one_epoch(loader(), lambda labels, change=change: change(labels.float().view(shape)))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_targets_that_are_no_classes(shape):
    draws = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(96, 4, generator=draws), torch.randn(96, *shape, generator=draws))

    def loader():
        loss_fn = sb.losses.PerExampleLoss(nn.MSELoss(), "mean")
        model = nn.Sequential(nn.Linear(4, 3 if shape else 1), nn.Identity() if shape else nn.Flatten(0))
        return sb.SelectiveLoader(DataLoader(data, 16), model, loss_fn, sb.ledger_backprop())

    for change in (mixed, lambda targets: targets.flip(0)):
        with pytest.raises(ValueError, match=OTHERS):
            one_epoch(loader(), change)
    for change in (
        torch.clone,
        lambda t: 2 * t - 1,
        lambda t: t.bfloat16().float(),
        lambda t: t + torch.randn(t.shape),
    ):
        one_epoch(loader(), change)


def test_targets_given_out_as_a_row_are_compared_as_a_column():
    data = TensorDataset(torch.randn(32, 4), torch.randn(32))

    def loader():
        return sb.SelectiveLoader(DataLoader(data, 16), nn.Linear(4, 1), nn.MSELoss(), sb.ledger_backprop())

    one_epoch(loader(), lambda targets: targets.unsqueeze(1))
    with pytest.raises(ValueError, match=OTHERS):
        one_epoch(loader(), lambda targets: targets.sort().values.unsqueeze(1))


@pytest.mark.parametrize("classes", [2, 10])
def test_smoothed_targets_of_balanced_batches(classes):
    """Their sums over the batch are those of the targets given out."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(20) % classes)[order].repeat(3)
    targets = labels.float() if classes == 2 else one_hot(labels)
    data = TensorDataset(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), targets)

    def loader():
        model = nn.Sequential(nn.Linear(4, targets[0].numel()), nn.Flatten(0) if classes == 2 else nn.Identity())
        loss = sb.losses.PerExampleLoss(nn.BCEWithLogitsLoss(), "mean")
        return sb.SelectiveLoader(DataLoader(data, 20), model, loss, sb.ledger_backprop())

    one_epoch(loader(), lambda given: 0.9 * given + 0.1 / classes)
    for change in (mixed, lambda given: given.flip(0), lambda given: given.roll(1, 0)):
        with pytest.raises(ValueError, match=OTHERS):
            one_epoch(loader(), change)


def test_a_method_that_needs_no_losses_takes_mixtures():
    one_epoch(make_loader(sb.selective_backprop(0.5)), lambda labels: mixed(one_hot(labels)))


def test_with_mixtures_the_loss_against_the_given_targets_is_reported():
    model, loss_fn = make_model(), nn.CrossEntropyLoss()
    loader = make_loader(sb.ledger_backprop(), model=model)
    for inputs, targets in loader:
        outputs = model(mixed(inputs))
        loader.loss(outputs.detach(), targets)
        loss_fn(outputs, mixed(one_hot(targets))).backward()
    assert not loader.ledger.loss.isnan().any()
