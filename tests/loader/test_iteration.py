"""Looking at a batch, two loops at once, batches that are not the loader's, the model's device, and the run's end."""

import copy
import gc
import itertools
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop import testing
from selective_backprop.sampler import planner
from tests.helpers import Noisy, digits, make_loader, make_model, train

METHODS = {
    "traditional": sb.traditional,
    "selective_backprop": lambda: sb.selective_backprop(0.4),
    "ledger_backprop": lambda: sb.methods.ledger_percentile(0.4),
    "infobatch": lambda: sb.infobatch(prune=0.4),
    "pipelined": lambda: sb.selective_backprop(0.4, scoring="pipelined"),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


@every_method
def test_an_iteration_that_is_left_in_its_first_batch_does_not_count(make):
    model = make_model()
    loader = make_loader(make(), dataset=Noisy(), model=model, num_epochs=3)
    for epoch in range(3):
        before = loader.stats.state_dict()
        next(iter(loader))
        for inputs, targets in loader:
            loader.loss(model(inputs), targets)
            break
        after = loader.stats.state_dict()
        del before["seconds"], after["seconds"], before["loss_sums"], after["loss_sums"]
        assert str(after) == str(before)
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
    model, loader = new()
    torch.manual_seed(4)
    expected = train(
        loader,
        model,
        3,
        on_step=lambda step, _: states.append(
            copy.deepcopy((loader.state_dict(), model.state_dict(), torch.get_rng_state()))
        ),
    )
    for step in (1, 5, len(expected) - 2):
        resumed_model, resumed = new()
        state, weights, rng = states[step - 1]
        resumed.load_state_dict(state)
        resumed_model.load_state_dict(weights)
        next(iter(resumed))
        next(iter(resumed))
        torch.set_rng_state(rng)
        optimizer = torch.optim.SGD(resumed_model.parameters(), lr=0.0)
        first = train(resumed, resumed_model, resumed.epoch + 1, optimizer=optimizer)
        assert first[0] == expected[step]


@every_method
def test_leaving_with_the_first_batch_after_a_resume_ends_the_epoch_as_without_stopping(make):
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
        return make_loader(
            make(), model=(model := make_model()), num_epochs=3, loader_options={"shuffle": False}
        ), model

    given, expected = [], []
    run(*new(), expected)
    states = run(*new(), given, save_at=5)
    for part, state in zip(resumed := new(), states, strict=True):
        part.load_state_dict(state)
    run(*resumed, given)
    assert given == expected and len(expected) == 9


def test_leaving_after_the_first_batch_ends_the_epoch_at_once():
    model = make_model()
    loader = make_loader(sb.selective_backprop(0.5), model=model)
    for _ in range(2):
        for number, (inputs, targets) in enumerate(loader):
            loader.loss(model(inputs), targets)
            if number == 1:
                break
    assert loader.epoch == 2 and loader.stats.queued == 0
    assert loader.state_dict()["epochs"]["under_way"] is None, "a resume begins the next epoch, as this run would"


def test_two_iterations_at_once_are_refused():
    loader = make_loader(sb.selective_backprop(0.5))
    message = r"another iteration over this loader is still going on.*iterator\.close\(\)"
    with pytest.raises(RuntimeError, match=message):
        for _ in loader:
            for _ in loader:
                pass
    with pytest.raises(RuntimeError, match=message):
        list(zip(loader, loader, strict=True))
    one, two = iter(loader), iter(loader)
    next(two)
    with pytest.raises(RuntimeError, match=message):
        next(one)
    with pytest.raises(RuntimeError, match=message):
        next(loader.batches())
    two.close()
    assert len(list(loader)) > 0


def test_an_iteration_that_is_over_left_or_failed_is_none():
    loader = make_loader(sb.selective_backprop(0.5))
    kept = iter(loader)
    assert len(list(kept)) > 0
    for _ in itertools.islice(loader, 3):
        pass
    for _ in loader:
        break
    try:
        for number, _ in enumerate(loader):
            if number == 2:
                raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        error = interrupt  # keeps its traceback and the frames of the loop alive, as notebooks do
    assert len(list(loader)) > 0
    del error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_leaving_at_a_loss_that_is_not_finite_ends_the_epoch():
    loader = make_loader(sb.ledger_backprop())
    for epoch in range(2):
        for number, (inputs, targets) in enumerate(loader):
            if not loader.loss(loader.model(inputs) / (number < 2), targets).isfinite():
                break
        assert number == 2 and loader.epoch == epoch + 1


def test_losses_of_other_batches_are_refused_and_not_recorded():
    model = make_model()
    loader = make_loader(sb.infobatch(), model=model, num_epochs=2)
    train(loader, model, 1)
    before = loader.ledger.loss.clone()
    inputs, targets = digits()[:16]
    with pytest.raises(RuntimeError, match=r"no training step is under way.*call your loss function itself"):
        loader.loss(model(inputs), targets)
    assert testing.same(before, loader.ledger.loss)
    for _ in loader:
        with pytest.raises(
            ValueError, match=r"shape \(9,\) for 16 examples.*validation, call your loss function itself"
        ):
            loader.loss(model(inputs[:9]), targets[:9])
        break


def test_weights_must_be_asked_for():
    loader = make_loader(sb.selective_backprop(0.4, unbiased=True, history_size=1))
    with pytest.raises(RuntimeError, match=r"gives examples weights.*loader.weights\(\)"):
        for _ in loader:
            assert (loader.batch.weights > 0).all(), "looking at them is not using them"
    for _ in loader:
        assert torch.equal(loader.weights(), loader.batch.weights)


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


def test_epochs_beyond_the_end_are_told_once(caplog):
    loader = make_loader(sb.selective_backprop(0.5), num_epochs=1)
    with caplog.at_level(logging.WARNING):
        list(loader)
        assert "num_epochs" not in caplog.text
        list(loader)
        list(loader)
    assert caplog.text.count("epoch 2 begins, but this SelectiveLoader was made for num_epochs=1") == 1
    assert caplog.text.count("num_epochs=1") == 1


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(digits())


def iterable_loader(num_batches=None):
    model = make_model()
    train_loader = DataLoader(Endless(), batch_size=16)
    if num_batches is not None:
        train_loader = sb.WithLength(train_loader, num_batches)
    return sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), sb.traditional(), num_epochs=2), model


def test_progress_needs_a_length():
    loader, model = iterable_loader()
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=0.1), lambda step: 1.0)
    next(iter(loader))
    with pytest.raises(ValueError, match=r"has no length: pass sb\.WithLength"):
        sb.step_by_progress(scheduler, loader, total_steps=26)


@pytest.mark.parametrize(("total", "logged"), [(13, False), (10, True), (20, True)])
def test_a_loader_is_told_its_length(total, logged, caplog):
    loader, model = iterable_loader(total)
    assert len(loader) == total
    seen = []
    train(loader, model, 2, on_step=lambda *_: seen.append(loader.progress))
    assert seen == sorted(seen) and seen[5] == pytest.approx(6 / total / 2) and loader.progress == 1
    assert ("the epoch had 13 candidate batches" in caplog.text) == logged
    assert caplog.text.count("13 candidate batches") == logged


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_epochs": "3"}, TypeError, "num_epochs must be a whole number, got '3'"),
        ({"num_epochs": 2.5}, TypeError, "num_epochs must be a whole number, got 2.5"),
        ({"num_epochs": True}, TypeError, "num_epochs must be a whole number, got True"),
        ({"num_epochs": 0}, ValueError, "num_epochs must be at least 1, got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number, got 2.5"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number, got 1.5"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"audit": "dynamics"}, TypeError, "audit must be True or False, got 'dynamics'"),
        (
            {"model": nn.Sequential(nn.LazyLinear(10))},
            ValueError,
            r"lazy modules .*\(0.weight, 0.bias\).*call the model",
        ),
    ],
)
def test_options_of_the_wrong_kind(options, error, message):
    with pytest.raises(error, match=message):
        make_loader(sb.selective_backprop(0.5), **options)


def test_with_length_of_the_wrong_kind():
    with pytest.raises(ValueError, match="num_batches must be a whole number of batches >= 1, got 0"):
        sb.WithLength(iter([1]), 0)
    with pytest.raises(ValueError, match="your loader has a length, 2 batches"):
        sb.WithLength([1, 2], 2)


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
    num_examples = len(loader.dataset)
    for _ in range(3):
        bar, seen = Bar(total=num_examples), []
        for inputs, targets in loader.with_bar(bar):
            loader.loss(model(inputs), targets).backward()
            seen.append(bar.n)
        assert bar.total == bar.n == num_examples
        assert seen == [round(num_examples * i / len(seen)) for i in range(len(seen))]


def test_a_bar_without_a_length_counts_batches():
    loader, _ = iterable_loader()
    loader.num_epochs = None
    bar = Bar()
    assert len(list(loader.with_bar(bar))) == 13 == bar.n


def test_mean_losses_say_what_they_are_of():
    model = make_model().eval()
    loader = make_loader(sb.top_k(0.5), model=model)
    assert loader.stats.mean_trained_loss != loader.stats.mean_trained_loss  # NaN
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
    inputs, targets = digits().tensors
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none").detach()
    assert loader.stats.mean_candidate_loss == pytest.approx(float(losses.mean()), rel=1e-5)
    trained = losses[loader.ledger.selected > 0]
    assert loader.stats.mean_trained_loss == pytest.approx(float(trained.mean()), rel=1e-5)
    assert loader.stats.mean_trained_loss > loader.stats.mean_candidate_loss


def test_a_plan_keeps_what_only_its_last_block_skipped(monkeypatch):
    """Of 100 million candidates, that of all blocks would be two gigabytes."""
    monkeypatch.setattr("selective_backprop.distributed.team._BLOCK", 40)
    loader = make_loader(sb.ledger_backprop(), model=(model := make_model()))
    train(loader, model, 1)
    loader.ledger.record_losses(torch.arange(203), torch.rand(203) ** 8, 0)
    held, decide = [], planner.Planner._decide

    def watched(*arguments):
        gc.collect()
        held.append(sum(type(thing) is planner._Skipped and len(thing.ids) > 0 for thing in gc.get_objects()))
        return decide(*arguments)

    monkeypatch.setattr(planner.Planner, "_decide", watched)
    train(loader, model, 2)
    assert loader.stats.skipped_before_loading > 0
    assert len(held) == 6 and max(held) == 0
