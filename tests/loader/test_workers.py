"""Worker processes: the same ids as without them, and they end when an iteration is left, as a DataLoader's do."""

import gc
import multiprocessing

import pytest
import torch

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import Noisy, digits, make_loader, train

METHODS = {
    "scored": lambda: sb.selective_backprop(0.5),
    "planned": lambda: sb.methods.ledger_percentile(0.5),
}
every_kind = pytest.mark.parametrize("name", METHODS)


def new(name, workers=2, dataset=None, **options):
    """A loader with an order and a model that are the same every time."""
    torch.manual_seed(0)
    options = {"num_workers": workers, "generator": torch.Generator().manual_seed(3)} | options
    return make_loader(METHODS[name](), dataset=dataset or digits(120), loader_options=options)


@pytest.fixture
def _without_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@every_kind
def test_workers_do_not_change_what_is_selected(name):
    runs = []
    for workers in (0, 2):
        loader = new(name, workers)
        torch.manual_seed(1)
        runs.append(train(loader, loader.model, 3))
    assert runs[0] == runs[1]


@pytest.mark.usefixtures("_without_garbage_collection")
@every_kind
def test_workers_end_when_an_iteration_is_left(name):
    assert not multiprocessing.active_children()
    loader = new(name)
    for number, (inputs, targets) in enumerate(loader):
        loader.loss(loader.model(inputs), targets)
        if number == 1:
            break
    assert not multiprocessing.active_children()
    with pytest.raises(KeyError):
        for inputs, targets in loader:
            loader.loss(loader.model(inputs), targets)
            raise KeyError
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("_without_garbage_collection")
def test_persistent_workers_live_as_long_as_the_loader():
    loader, workers = new("scored", persistent_workers=True), []
    for _ in range(2):
        train(loader, loader.model, loader.epoch + 1)
        workers.append({worker.pid for worker in multiprocessing.active_children()})
    assert workers[0] == workers[1] and len(workers[0]) == 2
    del loader
    assert not multiprocessing.active_children()


def test_saving_in_the_middle_of_an_epoch_with_workers_warns_once(caplog):
    """Augmentation inside workers starts anew there, and between epochs it resumes exactly."""
    loader, resumed = (new("scored", dataset=Noisy(120)) for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.state_dict()
    (warning,) = [record.message for record in caplog.records]
    assert "2 workers" in warning
    rest = [(loader.batch.ids, batch) for batch in iterator]
    resumed.load_state_dict(state)
    assert not same(rest, [(resumed.batch.ids, batch) for batch in resumed]), "should this hold, the warning is wrong"
    later = new("scored", dataset=Noisy(120))
    later.load_state_dict(loader.state_dict())
    assert same(list(loader), list(later))
