"""Worker processes end when an iteration is left, as those of a plain DataLoader do, and nothing else changes by it."""

import copy
import gc
import multiprocessing

import pytest
import torch

import selective_backprop as sb
from tests.helpers import digits, make_loader

METHODS = {
    "traditional": sb.traditional,
    "selective_backprop": lambda: sb.selective_backprop(0.5),
    "ledger": lambda: sb.methods.ledger_percentile(0.5),
    "diet": lambda: sb.diet(method=sb.selective_backprop(0.5), scores=torch.arange(120.0)),
    "pipelined": lambda: sb.selective_backprop(0.5, scoring="pipelined"),
}
every_method = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core


def new(name, workers=2, **options):
    """A loader with an order and a model that are the same every time."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    options = {"num_workers": workers, "shuffle": True, "generator": generator} | options
    return make_loader(METHODS[name](), dataset=digits(120), loader_options=options)


def take(loader, count):
    """Ids of the first batches of an iteration, which is left then."""
    ids = []
    for inputs, targets in loader:
        torch.manual_seed(loader.stats.batches)  # of dropout, which a state does not save
        loader.loss(loader.model(inputs), targets)
        ids.append(loader.batch.ids.tolist())
        if len(ids) == count:
            loader.saved = copy.deepcopy(loader.state_dict())
            break
    return ids


def leave_by_break(loader):
    take(loader, 2)


def leave_by_error(loader):
    with pytest.raises(KeyError):
        for inputs, targets in loader:
            loader.loss(loader.model(inputs), targets)
            raise KeyError


def leave_by_dropping_the_iterator(loader):
    iterator = iter(loader)
    inputs, targets = next(iterator)
    loader.loss(loader.model(inputs), targets)


@pytest.fixture
def _without_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_garbage_collection")
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_dropping_the_iterator])
@every_method
def test_workers_end_when_an_iteration_is_left(name, leave):
    assert not multiprocessing.active_children()
    loaders = [new(name) for _ in range(3)]
    for loader in loaders:
        leave(loader)
        assert not multiprocessing.active_children()


@pytest.mark.usefixtures("_without_garbage_collection")
@every_method
def test_persistent_workers_live_as_long_as_the_loader(name):
    loader = new(name, persistent_workers=True)
    leave_by_break(loader)
    workers = {worker.pid for worker in multiprocessing.active_children()}
    assert len(workers) == 2
    leave_by_break(loader)
    assert {worker.pid for worker in multiprocessing.active_children()} == workers
    del loader
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("_without_garbage_collection")
@every_method
def test_workers_of_an_epoch_that_was_only_looked_at_end_with_the_loader(name):
    """They load on when the epoch goes on."""
    loader = new(name)
    next(iter(loader))
    del loader
    assert not multiprocessing.active_children()


@every_method
def test_a_state_saved_before_a_break_is_that_of_the_last_step(name):
    steps = 2
    loader, whole = new(name), new(name)
    before = take(loader, steps)
    expected = take(whole, 100)
    resumed = new(name)
    resumed.model.load_state_dict(loader.model.state_dict())  # statistics of BatchNorm
    resumed.load_state_dict(loader.saved)
    assert len(expected) > steps and before + take(resumed, 100) == expected


@every_method
def test_the_next_iteration_after_a_break_is_the_next_epoch(name):
    # In order: how much a sampler has drawn after a break depends on how far ahead workers ask, as without selection.
    with_workers, without = new(name, shuffle=False), new(name, workers=0, shuffle=False)
    for _ in range(3):  # without an optimizer, scores do not depend on when they are made
        ids = take(with_workers, 2)
        assert len(ids) == 2 and ids == take(without, 2)
    assert with_workers.epoch == without.epoch == 3
    assert with_workers.stats.offered == without.stats.offered < 360


@every_method
def test_a_resume_between_epochs_keeps_the_order_with_persistent_workers(name):
    """When they start, they draw a seed from the generator of the order. A run that never stopped starts them once."""
    whole, resumed = (new(name, workers=1, persistent_workers=True) for _ in range(2))
    take(whole, 100)
    state, model = copy.deepcopy(whole.state_dict()), copy.deepcopy(whole.model.state_dict())
    expected = take(whole, 100)
    resumed.model.load_state_dict(model)
    resumed.load_state_dict(state)
    assert take(resumed, 100) == expected
