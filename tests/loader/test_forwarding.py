"""What other people's loops ask a loader for."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model

NAMES = ["dataset", "sampler", "batch_sampler", "drop_last", "num_workers", "collate_fn", "pin_memory", "generator"]


@pytest.mark.parametrize("name", NAMES)
def test_those_of_the_users_loader_for_reading(name):
    train_loader = DataLoader(digits(), 16, generator=torch.Generator(), drop_last=True)
    loader = sb.SelectiveLoader(train_loader, make_model(), torch.nn.CrossEntropyLoss(), sb.random_backprop(0.5))
    for _ in loader:
        assert getattr(loader, name) is getattr(train_loader, name)
    with pytest.raises(AttributeError, match=f"{name} belongs to your DataLoader and can only be read here"):
        setattr(loader, name, None)


def test_the_data_set_is_the_users_whole_one():
    """As PyTorch's MNIST example prints it."""
    loader = make_loader(sb.diet(method=sb.random_backprop(0.5), scores=torch.rand(203), prune=0.5))
    assert len(loader.dataset) == 203


def test_set_epoch_through_the_loader():
    sampler = DistributedSampler(digits(), num_replicas=1, rank=0)
    loader = make_loader(sb.traditional(), loader_options={"sampler": sampler, "shuffle": False})
    orders = []
    for epoch in (0, 1, 0):
        loader.sampler.set_epoch(epoch)
        orders.append([loader.batch.ids.tolist() for _ in loader])
    assert orders[0] == orders[2] != orders[1]


def test_its_own_names_come_first():
    loader = make_loader(sb.selective_backprop(0.5), batch_size=4)
    assert loader.batch_size == 4
    with pytest.raises(AttributeError):
        loader.batch_size = 8


def test_attributes_of_a_subclass_and_of_any_iterable():
    class Mine(DataLoader):
        vocabulary = ("a", "b")

    train_loader = Mine(digits(), 16)
    loader = sb.SelectiveLoader(train_loader, make_model(), torch.nn.CrossEntropyLoss(), sb.selective_backprop(0.5))
    assert loader.vocabulary is Mine.vocabulary
    loader = sb.SelectiveLoader(
        list(train_loader), make_model(), torch.nn.CrossEntropyLoss(), sb.selective_backprop(0.5)
    )
    for name in ("dataset", "vocabulary"):
        assert getattr(loader, name, None) is None
        message = f"SelectiveLoader has no attribute '{name}', and neither has your loader, a list"
        with pytest.raises(AttributeError, match=message):
            getattr(loader, name)


def test_an_unfinished_loader_has_no_attributes():
    with pytest.raises(AttributeError):
        _ = sb.SelectiveLoader.__new__(sb.SelectiveLoader).dataset
