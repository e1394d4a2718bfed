"""The ledger goes by how far losses are above the smallest: a floor under all of them says nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.helpers import digits

SIZE, CLASSES, EPOCHS = 600, 10, 12


def focal(outputs, targets, reduction="none"):
    return (1 - outputs.softmax(1).gather(1, targets[:, None])[:, 0]) ** 2 * F.cross_entropy(
        outputs, targets, reduction="none"
    )


def gaussian(outputs, targets):
    mean, log_variance = outputs[:, 0], outputs[:, 1].clamp(min=-6)
    return F.gaussian_nll_loss(mean, targets, log_variance.exp(), reduction="none")


def images_and_labels():
    images, labels = digits().tensors[:2]
    return images[:SIZE].float().flatten(1), labels[:SIZE]


def soft_targets(labels):
    """What a teacher or a fixed mixture gives: 80% on the label, the rest on the next class."""
    one_hot = F.one_hot(labels, CLASSES).float()
    return 0.8 * one_hot + 0.2 * one_hot.roll(1, 1)


def regression(images, labels):
    return images, labels.float() / CLASSES


LOSSES = {
    "cross-entropy": (nn.CrossEntropyLoss(), lambda x, y: (x, y)),
    "smoothing 0.1": (nn.CrossEntropyLoss(label_smoothing=0.1), lambda x, y: (x, y)),
    "smoothing 0.2": (nn.CrossEntropyLoss(label_smoothing=0.2), lambda x, y: (x, y)),
    "focal": (focal, lambda x, y: (x, y)),
    "soft targets": (nn.CrossEntropyLoss(), lambda x, y: (x, soft_targets(y))),
    "squared error": (lambda o, y: (o[:, 0] - y).square(), regression),
    "Gaussian": (gaussian, regression),
}


def trained(loss_fn, prepare, seed=0):
    """Examples trained on in each epoch."""
    inputs, targets = prepare(*images_and_labels())
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, CLASSES))
    data = DataLoader(TensorDataset(inputs, targets), batch_size=20, shuffle=True)
    loader = sb.SelectiveLoader(data, model, loss_fn, sb.ledger_backprop(), num_epochs=EPOCHS, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    counts = []
    for _ in range(EPOCHS):
        before = loader.stats.trained
        for x, y in loader:
            optimizer.zero_grad()
            loader.loss(model(x), y).backward()
            optimizer.step()
        counts.append(loader.stats.trained - before)
    return counts


@pytest.mark.parametrize("name", LOSSES)
def test_the_ledger_skips_what_is_fitted_whatever_floor_the_loss_has(name):
    """A small network fits the digits: in the last epochs at least a fifth is skipped."""
    counts = trained(*LOSSES[name])
    assert sum(counts[-4:]) < 0.8 * 4 * SIZE, counts
    assert sum(counts) > 0.2 * EPOCHS * SIZE


def test_a_floor_changes_nothing():
    """A constant that floats add without rounding much: the plans agree but for examples at the border."""
    plain = trained(nn.CrossEntropyLoss(reduction="none"), LOSSES["focal"][1])
    raised = trained(lambda o, y: F.cross_entropy(o, y, reduction="none") + 4.0, LOSSES["focal"][1])
    assert raised == pytest.approx(plain, rel=0.05, abs=10)
