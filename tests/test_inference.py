import random

import numpy as np
import pytest
import torch
from torch import nn

from selective_backprop.inference import NoTrace, unwrap
from selective_backprop.testing import global_random_states, model_trace, same
from tests.helpers import make_model


class Restless(nn.Module):
    """Writes a buffer and draws random numbers from everywhere, in eval mode too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        self.calls += 1
        random.random()
        np.random.rand()
        return self.linear(nn.functional.dropout(x, training=True))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("make", [make_model, Restless])
def test_nothing_is_different_afterwards(mode, make):
    model = make()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    guard, inputs = NoTrace(model, mode), torch.randn(8, 64)
    before = model_trace(model), global_random_states()
    for _ in range(3):
        with guard():
            outputs = model(inputs)
        assert not outputs.requires_grad
        assert same(before, (model_trace(model), global_random_states()))


def test_nothing_is_different_after_an_error_either():
    model = make_model()
    before = model_trace(model), global_random_states()
    with pytest.raises(RuntimeError), NoTrace(model)():
        model(torch.randn(8, 63))
    assert same(before, (model_trace(model), global_random_states()))


class OwnNoise(nn.Module):
    """Adds noise of a generator of its own, in eval mode too."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, inputs):
        return inputs + torch.randn(inputs.shape, generator=self.generator)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_generator_of_a_module_is_restored(mode):
    model, inputs = nn.Sequential(nn.Linear(3, 3), OwnNoise()), torch.zeros(2, 3)
    before = model[1].generator.get_state()
    with NoTrace(model, mode)():
        assert not torch.equal(model(inputs), model(inputs)), "two draws"
    assert torch.equal(model[1].generator.get_state(), before)


def test_eval_mode_scores_without_dropout_or_batch_statistics():
    model, inputs = make_model(), torch.randn(8, 64)
    with NoTrace(model)():
        together, alone = model(inputs), model(inputs[:1])
    assert torch.allclose(together[:1], alone, atol=1e-6)


def test_train_mode_scores_with_the_statistics_of_the_batch():
    model, inputs = nn.BatchNorm1d(3), torch.randn(8, 3) + 5
    with NoTrace(model, "train")():
        outputs = model(inputs)
    assert torch.allclose(outputs.mean(0), torch.zeros(3), atol=1e-5)


class Counting(nn.Module):
    """Writes a buffer of this many entries in eval mode, from one of its passes on."""

    def __init__(self, size, first_pass):
        super().__init__()
        self.register_buffer("calls", torch.zeros(size))
        self.register_buffer("graph", torch.eye(3).to_sparse())
        self.passes, self.first_pass = 0, first_pass

    def forward(self, x):
        self.passes += 1
        if self.passes >= self.first_pass:
            self.calls += 1
        return x + self.calls[0]


@pytest.mark.parametrize(("size", "first_pass"), [(8, 2), (8, 5), (2**19, 1)])
def test_buffers_are_restored_whenever_the_model_writes_them(size, first_pass):
    model = Counting(size, first_pass)
    guard, (buffer, _) = NoTrace(model), model.buffers()
    for _ in range(6):
        with guard():
            model(torch.ones(2))
        assert model.calls is buffer
        assert buffer.sum() == 0


def test_large_buffers_are_copied_only_once_if_the_first_pass_does_not_write_them():
    model = Counting(2**19, first_pass=9)
    guard, buffer = NoTrace(model), model.calls
    for copies in (True, False, False):
        with guard():
            model(torch.ones(2))
            assert (model.calls is not buffer) == copies


def test_a_large_buffer_that_a_later_pass_writes_is_told_of_and_restored_from_then_on(caplog):
    model = Counting(2**19, first_pass=3)
    guard = NoTrace(model)
    for _ in range(5):
        with guard():
            model(torch.ones(2))
    assert model.calls.unique().tolist() == [1], "the third pass wrote it, and no other"
    (line,) = [record.message for record in caplog.records]
    assert "the buffer calls of Counting, of more than 1 MB, was changed by a selection pass" in line


def test_tensors_cached_in_the_forward_pass_stay_usable_in_training():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(4, 1), None

        def forward(self, x):
            if self.scale is None:
                self.scale = torch.full((4,), 2.0)
            return self.linear(x * self.scale)

    model = Caching()
    with NoTrace(model)():
        model(torch.ones(2, 4))
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert model.linear.weight.grad is not None


def test_unwrap_goes_behind_compile_and_data_parallel():
    model = make_model()
    assert unwrap(torch.compile(nn.DataParallel(model))) is model
    assert unwrap(model) is model


def test_bad_mode():
    with pytest.raises(ValueError, match="'eval' or 'train', got 'test'"):
        NoTrace(make_model(), "test")
