"""Loops and data that selection cannot work with, and what is said at once."""

import copy
import pickle
import random

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

import selective_backprop as sb
from tests.helpers import digits, make_loader, make_model, train


class Buckets:
    """A batch sampler by tokens: few long examples or many short ones, in random order."""

    def __init__(self, sizes, seed=0):
        self.sizes, self.random = list(sizes), random.Random(seed)

    def __iter__(self):
        self.random.shuffle(self.sizes)
        start = 0
        for size in self.sizes:
            yield list(range(start, start + size))
            start += size

    def __len__(self):
        return len(self.sizes)


def of_buckets(method, sizes, seed=0, **options):
    loader = DataLoader(digits(), batch_sampler=Buckets(sizes, seed))
    model = make_model()
    return sb.SelectiveLoader(loader, model, nn.CrossEntropyLoss(), method, **options), model


@pytest.mark.parametrize("make", [sb.ledger_backprop, lambda: sb.selective_backprop(0.5)], ids=["planned", "scored"])
def test_batches_of_many_sizes_ask_for_one_whatever_comes_first(make):
    for seed in range(5):
        loader, model = of_buckets(make(), [4, 10, 64, 64, 10, 4], seed)
        with pytest.raises(ValueError, match=r"batches differ in size, such as .* pass batch_size=.* or batch_tokens="):
            train(loader, model, 1)
        loader, model = of_buckets(make(), [4, 10, 64, 64, 10, 4], seed, batch_size=16)
        train(loader, model, 1)


def test_a_smaller_last_batch_and_late_exceptions_are_no_error(caplog):
    loader, model = of_buckets(sb.selective_backprop(0.5), [10] * 20)
    loader.batch_sampler.sizes[-1:] = [3]
    loader.batch_sampler.random.shuffle = lambda sizes: None
    train(loader, model, 2)
    assert loader.batch_size == 10 and not caplog.records
    loader.batch_sampler.sizes[-2:] = [3, 10]  # as the last batch of each worker of a stream
    train(loader, model, 4)
    (warning,) = [record.message for record in caplog.records]
    assert "such as 10 and 3 examples, so training batches have 10: for another size" in warning


def test_a_resume_does_not_take_an_exception_for_the_usual_size(caplog):
    batches = [digits()[10 * n : 10 * n + (3 if n == 18 else 10)] for n in range(20)]
    model = make_model()

    def new():
        return sb.SelectiveLoader(batches, model, nn.CrossEntropyLoss(), sb.selective_backprop(0.5))

    loader, states = new(), []
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
        states.append(loader.state_dict())
    for state in states:
        resumed = new()
        resumed.load_state_dict(state)
        for inputs, targets in resumed:
            resumed.loss(model(inputs), targets)
        assert resumed.batch_size == 10
    assert all("so training batches have 10" in record.message for record in caplog.records)


@pytest.mark.parametrize("make", [sb.ledger_backprop, lambda: sb.selective_backprop(0.9)], ids=["planned", "scored"])
def test_the_length_is_a_bound_with_a_batch_sampler_that_does_not_tell_sizes(make):
    loader, model = of_buckets(make(), [64, 30, 64, 40], batch_size=8)
    length = len(loader)
    assert 4 < len(train(loader, model, 1)) <= length


def test_the_length_is_not_known_with_a_stream_that_does_not_tell_sizes():
    batches = [digits()[:40], digits()[40:80]]
    loader = sb.SelectiveLoader(batches, make_model(), nn.CrossEntropyLoss(), sb.random_backprop(0.9), batch_size=8)
    with pytest.raises(TypeError, match="number of training batches is not known"):
        len(loader)


def test_sizes_do_not_matter_while_batches_pass_unchanged():
    for method in (sb.traditional(), sb.selective_backprop(1.0)):
        loader, model = of_buckets(method, [4, 64, 10])
        assert sorted(map(len, train(loader, model, 1))) == [4, 10, 64]


@pytest.mark.parametrize("method", [sb.selective_backprop(0.5), sb.ledger_backprop(), sb.random_backprop(0.5)])
def test_the_loader_is_for_training(method):
    model = make_model()
    loader = make_loader(method, model=model, num_epochs=2)
    states = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        next(iter(loader))  # a look is free
    for evaluate in (lambda: update_bn(loader, model), lambda: torch.inference_mode()(lambda: list(loader))()):
        with pytest.raises(RuntimeError, match=r"without gradients .* for training.* loop over your own DataLoader"):
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
    assert "model.train()" in warning and "loop over your own DataLoader" in warning


def test_a_loop_that_computes_no_loss_is_told_that_the_loader_is_for_training():
    with pytest.raises(RuntimeError, match=r"compute the loss with .* To evaluate, loop over your own DataLoader"):
        list(make_loader(sb.ledger_backprop()))


def test_a_state_is_not_loaded_inside_a_loop():
    loader = make_loader(sb.ledger_backprop(), model=(model := make_model()))
    state = loader.state_dict()
    for inputs, targets in loader:
        loader.loss(model(inputs), targets)
        with pytest.raises(RuntimeError, match=r"load the state before the loop, or leave the loop first \(break"):
            loader.load_state_dict(state)
    loader.load_state_dict(state)
    assert loader.epoch == 0


def test_a_loader_is_not_copied():
    loader = make_loader(sb.ledger_backprop())
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.* save loader.state_dict"):
            act(loader)
