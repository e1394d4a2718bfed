"""A transform that takes ids."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.helpers import NUM_DIGITS, digits, make_loader, make_model

INPUTS, TARGETS = digits().tensors


def numbers(ids, epoch):
    """A number for each example, which follows from its id and the epoch."""
    return (ids * 37 % 101 + epoch)[:, None] / 100


class Shifted:
    """Adds a number to each example, and notes what it is called with."""

    takes_ids = True

    def __init__(self):
        self.calls = []

    def __call__(self, batch, ids, epoch):
        self.calls.append((ids.tolist(), epoch))
        return batch[0] + numbers(ids, epoch), batch[1]


def test_it_is_given_the_ids_and_the_epoch_of_what_is_loaded():
    shifted, model = Shifted(), make_model()
    loader = make_loader(sb.methods.ledger_percentile(0.3), model=model, num_epochs=3, transform=shifted)
    for epoch in range(3):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            if epoch == 0:
                ids = loader.batch.ids
                assert torch.equal(inputs, INPUTS[ids] + numbers(ids, 0))
    by_epoch = [[i for ids, epoch in shifted.calls if epoch == number for i in ids] for number in range(3)]
    assert sorted(by_epoch[0]) == list(range(NUM_DIGITS))
    assert 0 < len(by_epoch[2]) < NUM_DIGITS, "skipped examples are not even loaded"


def test_the_epoch_is_right_after_a_resume_in_its_middle():
    first, model = Shifted(), make_model()
    loader = make_loader(sb.random_backprop(0.5), model=model, num_epochs=2, transform=first)
    for _ in loader:
        pass
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    second = Shifted()
    resumed = make_loader(sb.random_backprop(0.5), model=make_model(), num_epochs=2, transform=second)
    resumed.load_state_dict(state)
    for _ in resumed:
        pass
    assert second.calls and {epoch for _, epoch in second.calls} == {1}


def test_a_loader_without_ids_is_refused():
    batches = list(DataLoader(digits(), 16))
    with pytest.raises(ValueError, match="your transform takes the ids of examples, and your loader has no ids"):
        sb.SelectiveLoader(batches, make_model(), nn.CrossEntropyLoss(), sb.top_k(0.5), transform=Shifted())
