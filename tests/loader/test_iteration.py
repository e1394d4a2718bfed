"""Looking at a batch, two loops at once, batches that are not the loader's, the model's device, and the run's end."""

import copy
import itertools
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop import testing
from tests.helpers import Noisy, digits, make_loader, make_model, train

METHODS = {
    "traditional": sb.traditional,
    "selective_backprop": lambda: sb.selective_backprop(0.4),
    "ledger_backprop": lambda: sb.methods.ledger_percentile(0.4),
    "infobatch": lambda: sb.infobatch(prune=0.4),
    "pipelined": lambda: sb.selective_backprop(0.4, scoring="pipelined"),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


def run(make, *, look, batch_size=16, epochs=3):
    torch.manual_seed(4)
    model = make_model()
    options = {"batch_size": batch_size, "shuffle": True}
    loader = make_loader(make(), dataset=Noisy(), model=model, num_epochs=epochs, loader_options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ids, seen = [], []
    for _ in range(epochs):
        look(loader, seen)
        train(loader, model, loader.epoch + 1, optimizer=optimizer, on_step=lambda *_: ids.append(loader.batch.ids))
    return ids, seen, model, loader


def no_look(loader, seen):
    pass


def one_look(loader, seen):
    seen.append(next(iter(loader)))


def two_looks(loader, seen):
    one_look(loader, seen)
    for batch in loader:
        assert testing.same(batch, seen[-1]), "the same batch again"
        break


def look_and_save(loader, seen):
    one_look(loader, seen)
    loader.load_state_dict(copy.deepcopy(loader.state_dict()))


@every_method
@pytest.mark.parametrize("look", [one_look, two_looks, look_and_save])
def test_a_look_at_the_first_batch_costs_nothing(make, look):
    expected, _, expected_model, expected_loader = run(make, look=no_look)
    ids, seen, model, loader = run(make, look=look)
    assert len(seen) == 3
    assert testing.same(ids, expected)
    assert testing.same(model.state_dict(), expected_model.state_dict())
    assert (loader.epoch, loader.progress) == (3, 1)
    counts, expected_counts = loader.stats.state_dict(), expected_loader.stats.state_dict()
    del counts["seconds"], expected_counts["seconds"]
    assert str(counts) == str(expected_counts)


def test_a_look_at_the_only_batch_of_an_epoch():
    """Which is given out when the epoch has been counted already."""
    options = {"batch_size": 203, "epochs": 1}
    expected, _, expected_model, _ = run(METHODS["selective_backprop"], look=no_look, **options)
    ids, _, model, loader = run(METHODS["selective_backprop"], look=two_looks, **options)
    assert testing.same(ids, expected) and len(ids) == 1
    assert testing.same(model.state_dict(), expected_model.state_dict())
    assert (loader.epoch, loader.progress, loader.stats.queued) == (1, 1, 0)


def test_what_flush_gave_out_does_not_come_back():
    model = make_model()
    loader = make_loader(sb.selective_backprop(0.3), model=model, loader_options={"batch_size": 203})
    given = 0
    for _ in range(4):
        for inputs, targets in itertools.chain(loader, loader.flush()):
            loader.loss(model(inputs), targets)
            given += len(targets)
    assert given == loader.stats.trained == int(loader.ledger.selected.sum())


def test_leaving_after_a_training_step_is_no_look():
    model = make_model()
    loader = make_loader(sb.selective_backprop(0.5), model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for inputs, targets in loader:
            if epoch:
                loader.loss(model(inputs), targets)
            else:
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            break
    next(iter(loader))
    assert loader.epoch == 2


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


def test_looking_at_the_batch_is_not_using_its_weights():
    loader = make_loader(sb.selective_backprop(0.4, unbiased=True, history_size=1))
    with pytest.raises(RuntimeError, match="gives examples weights"):
        for _ in loader:
            assert "weights=tensor" in repr(loader.batch)
            assert len(loader.batch) == len(loader.batch.ids) == len(loader.batch.data[0])
    for _ in loader:
        assert (loader.batch.weights > 0).all()
    for _ in loader:
        assert torch.equal(copy.deepcopy(loader.batch).weights, loader.batch.weights)


def test_batches_come_to_where_the_model_is_by_then():
    model = nn.Linear(64, 10)
    loader = make_loader(sb.traditional(), model=model)
    model.to("meta")
    assert {inputs.device.type for inputs, _ in loader} == {"meta"}
    fixed = make_loader(sb.traditional(), model=nn.Linear(64, 10).to("meta"), device="cpu")
    assert {inputs.device.type for inputs, _ in fixed} == {"cpu"}


def test_what_is_queued_moves_with_the_model():
    model = nn.Linear(64, 10)
    loader = make_loader(sb.random_backprop(0.4), model=model)
    for _ in loader:
        pass
    assert loader.stats.queued > 0
    model.to("meta")
    assert all(part.device.type == "meta" for batch in loader for part in batch)


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


def iterable_loader(**options):
    model = make_model()
    train_loader = DataLoader(Endless(), batch_size=16)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), sb.traditional(), num_epochs=2, **options)
    return loader, model


def test_progress_needs_a_length():
    loader, model = iterable_loader()
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=0.1), lambda step: 1.0)
    next(iter(loader))
    with pytest.raises(ValueError, match="has no length: pass total_batches= to SelectiveLoader"):
        sb.step_by_progress(scheduler, loader, total_steps=26)


@pytest.mark.parametrize(("total", "logged"), [(13, False), (10, True), (20, True)])
def test_total_batches_of_a_loader_without_a_length(total, logged, caplog):
    loader, model = iterable_loader(total_batches=total)
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
        ({"scope": "glob"}, ValueError, "scope must be 'global' or 'local', got 'glob'"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number, got 1.5"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"total_batches": 0}, ValueError, "total_batches must be at least 1, got 0"),
        ({"total_batches": 5}, ValueError, "your loader has 13 batches and total_batches is 5: leave it out"),
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


def test_a_bar_without_a_length_counts_batches():
    loader, _ = iterable_loader()
    loader.num_epochs = None
    bar = Bar()
    assert len(list(loader.with_bar(bar))) == 13 == bar.n


def test_mean_losses_say_what_they_are_of():
    model = make_model().eval()
    loader = make_loader(sb.top_k(0.5), model=model)
    assert loader.stats.mean_trained_loss != loader.stats.mean_trained_loss  # NaN
    with torch.no_grad():
        for inputs, targets in itertools.chain(loader, loader.flush()):
            loader.loss(model(inputs), targets)
        inputs, targets = digits().tensors
        losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    assert loader.stats.mean_candidate_loss == pytest.approx(float(losses.mean()), rel=1e-5)
    trained = losses[loader.ledger.selected > 0]
    assert loader.stats.mean_trained_loss == pytest.approx(float(trained.mean()), rel=1e-5)
    assert loader.stats.mean_trained_loss > loader.stats.mean_candidate_loss
