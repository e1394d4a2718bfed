"""TailSFT: what fell most is dropped."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.ledger import Ledger
from selective_backprop.scorers import FallScorer

NUM = 120


def data():
    draws = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(NUM, 6, generator=draws), torch.randint(3, (NUM,), generator=draws))


def run(method, epochs=4):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    batches = DataLoader(data(), 12, shuffle=True, generator=torch.Generator().manual_seed(1))
    loader = sb.SelectiveLoader(batches, model, nn.CrossEntropyLoss(), method, num_epochs=epochs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    history = []
    for _ in range(epochs):
        before = copy.deepcopy(loader.ledger)
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        trained = (loader.ledger.selected - before.selected) > 0
        history.append((before, trained))
    return loader, history


def test_the_first_loss_stays_and_the_last_one_moves():
    ledger = Ledger(3, sb.scorers.FallScorer().needs.columns)
    ledger.record_losses(torch.tensor([2, 0]), torch.tensor([5.0, 4.0]), epoch=0)
    ledger.record_losses(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]), epoch=1)
    assert ledger.first_loss.tolist() == [4, 2, 5] and ledger.loss.tolist() == [1, 2, 5]
    scores = FallScorer().recall(torch.arange(3), ledger.rows(torch.arange(3)), epoch=2)
    assert scores[0] == -3 and scores[1:].isnan().all(), "one loss is no fall"


def test_the_quarter_that_fell_most_is_dropped():
    _, history = run(sb.methods.tail_sft(0.75))
    assert history[0][1].all() and history[1][1].all(), "two losses make a fall"
    before, trained = history[2]  # in later epochs, some examples still wait from the epoch before
    fall = before.first_loss - before.loss
    assert int(trained.sum()) == 0.75 * NUM
    assert fall[~trained].min() > fall[trained].max()


def test_nothing_dropped_is_plain_training():
    plain, _ = run(sb.traditional())
    tail, _ = run(sb.methods.tail_sft(1.0))
    assert all(torch.equal(*pair) for pair in zip(plain.model.parameters(), tail.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"selectivity": 0}, ValueError, r"selectivity must be in \(0, 1\], got 0"),
        ({"max_age": 0}, ValueError, "max_age must be at least 1"),
    ],
)
def test_bad_input_is_a_clear_error(options, kind, message):
    with pytest.raises(kind, match=message):
        sb.methods.tail_sft(**options)
