"""Models and losses may write to the batch that they get. What is trained on later is the batch as it was loaded."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.functional import select_using_loss

LARGE = 255 * torch.rand(96, 4, 6, generator=torch.Generator().manual_seed(0))
LABELS = (LARGE[:, 0] > 128).long()
LABELS[:, :2] = 255  # no class


class DividesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv1d(4, 2, 1)

    def forward(self, inputs):
        return self.layer(inputs.div_(255))


def loss_that_clears_marks(outputs, targets):
    has_class = targets != 255
    targets[~has_class] = 0
    losses = F.cross_entropy(outputs, targets, reduction="none") * has_class
    return losses.sum(1) / has_class.sum(1)


def run(method):
    """Train for two epochs. Returns the weights, and the largest input and target of all batches."""
    data, model, largest = TensorDataset(LARGE.clone(), LABELS.clone()), DividesItsInput(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = train_loader = DataLoader(data, 16)
    if method is not None:
        loader = sb.SelectiveLoader(train_loader, model, loss_that_clears_marks, method, num_epochs=2)
    for _ in range(2):
        for inputs, targets in loader:
            largest.append((float(inputs.max()), int(targets.max())))
            loss = (loss_that_clears_marks if method is None else loader.loss)(model(inputs), targets).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.layer.weight.detach(), min(value for value, _ in largest), min(label for _, label in largest)


@pytest.mark.parametrize(
    "method",
    [
        sb.selective_backprop(1.0),
        sb.selective_backprop(1.0, scoring="train"),
        sb.selective_backprop(1.0, scoring="pipelined"),
    ],
)
def test_selectivity_1_is_plain_training(method):
    assert torch.equal(run(method)[0], run(None)[0])


@pytest.mark.parametrize("method", [sb.top_k(0.5), sb.stale_selective_backprop(0.5), sb.methods.kath18(0.5)])
def test_selected_examples_are_as_they_were_loaded(method):
    _, least_input, least_target = run(method)
    assert least_input > 200 and least_target == 255


def test_functions_and_advice_leave_batches_too():
    inputs, targets = LARGE.clone(), LABELS[:, 5].clone()
    model = nn.Sequential(DividesItsInput(), nn.Flatten(), nn.LazyLinear(2))
    model(inputs.clone())
    select_using_loss(inputs, targets, model, F.cross_entropy)
    batches = [(inputs[:48], targets[:48]), (inputs[48:], targets[48:])]
    sb.advise(model, nn.CrossEntropyLoss(), batches, seconds=0.01)
    assert torch.equal(inputs, LARGE)


def with_reduction(outputs, targets, reduction="mean"):
    return F.cross_entropy(outputs.div_(4), targets, reduction=reduction)


@pytest.mark.parametrize("method", [sb.ledger_backprop(), sb.infobatch()])
def test_a_loss_that_writes_and_would_be_called_twice_is_refused(method):
    data, model = TensorDataset(LARGE[:, 0].clone(), LABELS[:, 5]), nn.Linear(6, 2)
    loader = sb.SelectiveLoader(DataLoader(data, 16), model, with_reduction, method, num_epochs=2)
    with pytest.raises(ValueError, match="without reduction="):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
