"""A transform that takes ids, and random numbers that follow from them."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.helpers import NUM_DIGITS, digits, make_loader, make_model

INPUTS, TARGETS = digits().tensors


class Shifted:
    """Adds a random number to each example, and notes what it is called with."""

    takes_ids = True

    def __init__(self):
        self.calls = []

    def __call__(self, batch, ids, epoch):
        self.calls.append((ids.tolist(), epoch))
        return batch[0] + sb.functional.random_by_id(ids, seed=1, epoch=epoch, count=1).float(), batch[1]


def test_it_is_given_the_ids_and_the_epoch_of_what_is_loaded():
    shifted, model = Shifted(), make_model()
    loader = make_loader(sb.methods.ledger_percentile(0.3), model=model, num_epochs=3, transform=shifted)
    for epoch in range(3):
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            if epoch == 0:
                ids = loader.batch.ids
                expected = INPUTS[ids] + sb.functional.random_by_id(ids, seed=1, epoch=0, count=1).float()
                assert torch.equal(inputs, expected)
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


def test_random_numbers_are_uniform_and_follow_from_the_id():
    ids = torch.arange(20_000)
    numbers = sb.functional.random_by_id(ids, seed=3, epoch=1, count=4)
    assert numbers.shape == (20_000, 4) and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
    assert (counts - 4000).abs().max() < 5 * 4000**0.5
    assert (torch.corrcoef(numbers.T) - torch.eye(4)).abs().max() < 5 / 20_000**0.5
    neighbours = torch.stack([numbers[:-1, 0], numbers[1:, 0]])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 5 / 20_000**0.5
    assert torch.equal(numbers[[5, 900]], sb.functional.random_by_id(ids[[5, 900]], seed=3, epoch=1, count=4))
    for other in ({"seed": 4, "epoch": 1}, {"seed": 3, "epoch": 2}, {"seed": -3, "epoch": 1}):
        assert not bool((numbers == sb.functional.random_by_id(ids, count=4, **other)).any())


def test_a_record_keeps_the_seed_of_its_views(tmp_path):
    record = sb.pruning.SelectionRecord(4, view_seed=2**40)
    record.add_ids(torch.tensor([1, 3]))
    record.save(tmp_path / "record.pt")
    assert sb.pruning.SelectionRecord.load(tmp_path / "record.pt").view_seed == 2**40
    sb.pruning.SelectionRecord(4).save(tmp_path / "plain.pt")
    assert sb.pruning.SelectionRecord.load(tmp_path / "plain.pt").view_seed is None
    with pytest.raises(ValueError, match=r"view_seed must be a whole number or None, got 1\.5"):
        sb.pruning.SelectionRecord(4, view_seed=1.5)
