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


def test_buffers_are_only_copied_where_the_model_writes_them():
    for model, writes in ((make_model(), False), (Restless(), True)):
        guard, (buffer, *_) = NoTrace(model), model.buffers()
        with guard():
            model(torch.randn(4, 64))
        with guard():  # the first pass has found out
            assert (next(model.buffers()) is not buffer) == writes
        assert next(model.buffers()) is buffer


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
    with pytest.raises(ValueError, match="scoring mode must be 'eval' or 'train', got 'test'"):
        NoTrace(make_model(), "test")
