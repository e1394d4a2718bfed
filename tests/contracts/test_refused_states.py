"""Promise 5: a state that does not fit is refused, says what differs, and changes nothing."""

import functools
import io

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.contracts.methods import KINDS
from tests.helpers import digits, make_loader, make_model, train

EPOCHS = 2


def make(method, **options):
    torch.manual_seed(0)
    model = make_model()
    loader_options = {"generator": torch.Generator().manual_seed(3)}
    loader = make_loader(method, model=model, num_epochs=EPOCHS, loader_options=loader_options, **options)
    return loader, model


@functools.cache
def saved(name):
    """What a run by the method saves in the middle of its first epoch."""
    loader, model = make(KINDS[name](0.4))
    states = []
    train(
        loader,
        model,
        1,
        on_step=lambda *_: states.append(torch.save(loader.state_dict(), file := io.BytesIO()) or file),
    )
    states[2].seek(0)
    return torch.load(states[2], weights_only=True)


def run(name, between=lambda loader: None):
    """A short run, with something done between its epochs; its outcome."""
    loader, model = make(KINDS[name](0.4))
    batches = train(loader, model, 1)
    between(loader)
    batches += train(loader, model, EPOCHS)
    return batches, model.state_dict(), loader.stats.offered, loader.ledger.state_dict()


@pytest.mark.parametrize("name", KINDS)
def test_5_states_of_other_methods_are_refused_and_change_nothing(name):
    states = {other: saved(other) for other in KINDS if other != name}  # before the run: they are made by training

    def try_all(loader):
        for other, state in states.items():
            with pytest.raises(ValueError, match=KINDS[other](0.4).name.split("(")[0]):
                loader.load_state_dict(state)

    assert same(run(name, try_all), run(name))
    loader, _ = make(KINDS[name](0.4))
    loader.load_state_dict(saved(name))
    assert loader.stats.batches == 3, "its own state is taken"


def test_5_another_option_is_named():
    loader, _ = make(sb.selective_backprop(0.5))
    with pytest.raises(ValueError, match=r"selectivity.*0\.4.*0\.5"):
        loader.load_state_dict(saved("selective_backprop"))


def test_5_a_state_of_another_pruning_is_refused():
    scores = torch.arange(203.0)

    def loader(prune, scores):
        method = sb.diet(method=sb.selective_backprop(0.5), scores=scores, prune=prune)
        return sb.SelectiveLoader(DataLoader(digits(), 16), make_model(), nn.CrossEntropyLoss(), method)

    state = loader(0.25, scores).state_dict()
    for other in (loader(0.5, scores), loader(0.25, -scores)):
        with pytest.raises(ValueError, match="keep"):
            other.load_state_dict(state)
    loader(0.25, scores).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "shown"),
    [({"batch_size": 8}, "16.* 8"), ({"dataset": digits(100)}, "203.* 100")],
    ids=["batch size", "data set"],
)
def test_5_states_of_other_sizes_are_refused(options, shown):
    loader, _ = make(sb.selective_backprop(0.4), **options)
    with pytest.raises(ValueError, match=shown):
        loader.load_state_dict(saved("selective_backprop"))
    assert loader.stats.offered == 0


@pytest.mark.parametrize(
    "change", [lambda state: state | {"version": 99}, lambda state: {}], ids=["version", "no state"]
)
def test_5_what_is_no_state_of_this_version_is_refused(change):
    loader, _ = make(sb.selective_backprop(0.4))
    with pytest.raises(ValueError, match="version"):
        loader.load_state_dict(change(saved("selective_backprop")))
