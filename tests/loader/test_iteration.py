"""Looking at a batch, leaving an epoch, two loops at once, loops that do not train, bars, and the run's end."""

import copy
import itertools
import logging
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.helpers import Noisy, digits, make_loader, make_model, train

METHODS = {
    "traditional": sb.traditional,
    "selective_backprop": lambda: sb.selective_backprop(0.4),
    "ledger": lambda: sb.methods.ledger_percentile(0.4),
    "infobatch": lambda: sb.infobatch(prune=0.4),
    "pipelined": lambda: sb.selective_backprop(0.4, scoring="pipelined"),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


@every_method
def test_an_iteration_that_is_left_in_its_first_batch_does_not_count(make):
    model = make_model()
    loader = make_loader(make(), dataset=Noisy(), model=model, num_epochs=3)
    for epoch in range(3):
        before = loader.stats.offered, loader.stats.scored, loader.stats.trained, loader.stats.batches
        next(iter(loader))
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            break
        assert (loader.stats.offered, loader.stats.scored, loader.stats.trained, loader.stats.batches) == before
        assert (loader.epoch, loader.epochs_done) == (epoch, epoch)
        train(loader, model, epoch + 1)
    assert (loader.epoch, loader.progress, loader.stats.offered) == (3, 1, 3 * 203)
    assert bool((loader.ledger.offered == 3).all())
    assert int(loader.ledger.selected.sum()) == loader.stats.trained


@every_method
def test_a_look_after_a_resume_changes_nothing(make):
    def new():
        model = make_model()
        return model, make_loader(make(), model=model, num_epochs=3, loader_options={"shuffle": False})

    states = []

    def save(step, _):
        states.append(copy.deepcopy((loader.state_dict(), model.state_dict(), torch.get_rng_state())))

    model, loader = new()
    torch.manual_seed(4)
    expected = train(loader, model, 3, on_step=save)
    for step in (1, 5, len(expected) - 2):
        resumed_model, resumed = new()
        state, weights, rng = states[step - 1]
        resumed.load_state_dict(state)
        resumed_model.load_state_dict(weights)
        look = next(iter(resumed))[0].clone()
        next(iter(resumed))[0].zero_()  # what a look gave out may be written to
        assert torch.equal(next(iter(resumed))[0], look)
        torch.set_rng_state(rng)
        optimizer = torch.optim.SGD(resumed_model.parameters(), lr=0.0)
        first = train(resumed, resumed_model, resumed.epoch + 1, optimizer=optimizer)
        assert first[0] == expected[step]


@every_method
def test_epochs_that_are_left_early_are_over_in_a_resumed_run_too(make):
    def run(loader, model, given, save_at=None):
        while loader.epoch < 3:  # each epoch is left after its third batch
            for inputs, targets in loader:
                torch.manual_seed(len(given))  # of dropout
                loader.loss(model(inputs), targets)
                given.append((loader.epoch, loader.batch.ids.tolist()))
                if len(given) == save_at:
                    return copy.deepcopy([loader.state_dict(), model.state_dict()])
                if len(given) % 3 == 0:
                    break

    def new():
        model = make_model()
        return make_loader(make(), model=model, num_epochs=3, loader_options={"shuffle": False}), model

    given, expected = [], []
    run(*new(), expected)
    states = run(*new(), given, save_at=5)
    for part, state in zip(resumed := new(), states, strict=True):
        part.load_state_dict(state)
    run(*resumed, given)
    assert given == expected and len(expected) == 9


def test_leaving_after_the_first_batch_ends_the_epoch_at_once():
    loader = make_loader(sb.selective_backprop(0.5), model=(model := make_model()))
    for _ in range(2):
        for number, (inputs, targets) in enumerate(loader):
            loader.loss(model(inputs), targets)
            if number == 1:
                break
    assert loader.epoch == 2 and loader.stats.queued == 0
    resumed = make_loader(sb.selective_backprop(0.5))
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == resumed.epochs_done == 2, "a resume begins the next epoch, as this run would"


def test_two_iterations_at_once_are_refused():
    loader = make_loader(sb.selective_backprop(0.5))
    with pytest.raises(RuntimeError, match=r"iterator\.close\(\)"):
        for _ in loader:
            for _ in loader:
                pass
    with pytest.raises(RuntimeError, match=r"iterator\.close\(\)"):
        list(zip(loader, loader, strict=True))
    one, two = iter(loader), iter(loader)
    next(two)
    with pytest.raises(RuntimeError, match=r"iterator\.close\(\)"):
        next(one)
    two.close()
    assert len(list(loader)) > 0


def test_an_iteration_that_is_over_left_or_failed_is_none():
    loader = make_loader(sb.selective_backprop(0.5))
    kept = iter(loader)
    assert len(list(kept)) > 0
    for _ in itertools.islice(loader, 3):
        pass
    try:
        for number, _ in enumerate(loader):
            if number == 2:
                raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        error = interrupt  # keeps its traceback and the frames of the loop alive, as notebooks do
    assert len(list(loader)) > 0
    del error


def test_losses_of_other_batches_are_not_recorded():
    model = make_model()
    loader = make_loader(sb.infobatch(), model=model, num_epochs=2)
    train(loader, model, 1)
    before = loader.ledger.loss.clone()
    inputs, targets = digits()[:16]
    with pytest.raises(RuntimeError, match="call your loss function itself"):
        loader.loss(model(inputs), targets)
    assert torch.equal(before, loader.ledger.loss)


# ---- loops that the loader is not for


@pytest.mark.parametrize("method", [sb.selective_backprop(0.5), sb.ledger_backprop(), sb.random_backprop(0.5)])
def test_the_loader_is_for_training(method):
    model = make_model()
    loader = make_loader(method, model=model, num_epochs=2)
    states = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        next(iter(loader))  # a look is free
    for evaluate in (lambda: update_bn(loader, model), lambda: torch.inference_mode()(lambda: list(loader))()):
        with pytest.raises(RuntimeError, match="your own DataLoader"):
            evaluate()
    assert (loader.epoch, loader.stats.trained) == (0, 0), "it does not count"
    model.load_state_dict(states)
    train(loader, model, 2)
    assert loader.progress == 1


def test_a_whole_model_in_eval_mode_is_told_once(caplog):
    loader = make_loader(sb.selective_backprop(0.5), model=(model := make_model()))
    assert not model[5].training, "a part in eval mode is usual"
    train(loader, model, 1)
    assert not caplog.records
    model.eval()
    train(loader, model, 3)
    (warning,) = [record.message for record in caplog.records]
    assert "model.train()" in warning


def test_a_state_is_not_loaded_inside_a_loop():
    loader = make_loader(sb.ledger_backprop(), model=(model := make_model()))
    state = loader.state_dict()
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
        with pytest.raises(RuntimeError, match="before the loop"):
            loader.load_state_dict(state)
    loader.load_state_dict(state)
    assert loader.epoch == 0


def test_a_loader_is_not_copied():
    loader = make_loader(sb.ledger_backprop())
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"loader\.state_dict"):
            act(loader)


def test_batches_come_to_where_the_model_is_by_then():
    model = nn.Linear(64, 10)
    loader = make_loader(sb.traditional(), model=model)
    model.to("meta")
    assert {inputs.device.type for inputs, _ in loader} == {"meta"}
    fixed = make_loader(sb.traditional(), model=nn.Linear(64, 10).to("meta"), device="cpu")
    assert {inputs.device.type for inputs, _ in fixed} == {"cpu"}


@pytest.mark.gpu
def test_a_model_that_is_moved_after_the_loader_was_made():
    model = make_model()
    loader = make_loader(sb.selective_backprop(0.5), model=model)
    train(loader, model, 1)
    model.cuda()
    assert len(train(loader, model, 2)) > 0
    assert all(part.is_cuda for part in loader.batch.data), "batches follow the model"


# ---- the run's end, and bars


def test_epochs_beyond_the_end_are_told_once(caplog):
    loader = make_loader(sb.selective_backprop(0.5), num_epochs=1)
    with caplog.at_level(logging.WARNING):
        list(loader)
        assert not caplog.records
        list(loader)
        list(loader)
    assert caplog.text.count("num_epochs=1") == 1


class Bar:
    """As tqdm's, as far as it is used."""

    def __init__(self, total=None):
        self.total, self.n, self.closed = total, 0, False

    def update(self, count):
        self.n += count

    def close(self):
        self.closed = True


@every_method
def test_a_bar_by_candidates_ends_with_the_epoch(make):
    model = make_model()
    loader = make_loader(make(), model=model, num_epochs=2)
    for _ in range(2):
        bar, seen = Bar(), []
        for inputs, targets in loader.with_bar(bar):
            loader.loss(model(inputs), targets).backward()
            seen.append(bar.n)
        assert bar.total == bar.n == 13 and bar.closed
        assert seen == sorted(seen) and seen[0] < 13


def test_a_bar_that_counts_examples_ends_with_the_last_one():
    model = make_model()
    loader = make_loader(sb.ledger_backprop(), model=model, num_epochs=3)
    for _ in range(3):
        bar, seen = Bar(total=203), []
        for inputs, targets in loader.with_bar(bar):
            loader.loss(model(inputs), targets).backward()
            seen.append(bar.n)
        assert bar.total == bar.n == 203
        assert seen == [round(203 * i / len(seen)) for i in range(len(seen))]


def test_a_bar_without_a_length_counts_batches():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(digits())

    bar, stream = Bar(), DataLoader(Stream(), batch_size=16)
    loader = sb.SelectiveLoader(stream, make_model(), nn.CrossEntropyLoss(), sb.traditional())
    assert len(list(loader.with_bar(bar))) == 13 == bar.n
