"""Composer's two functions: its signatures, shapes and errors, without its flaws."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from selective_backprop.functional import select_using_loss, should_selective_backprop
from selective_backprop.testing import global_random_states, model_trace, same


@pytest.mark.parametrize(("duration", "expected"), [(0.49, False), (0.5, True), (0.89, True), (0.9, False)])
def test_window_is_closed_at_its_start_and_open_at_its_end(duration, expected):
    assert should_selective_backprop(duration, batch_idx=0) is expected


@pytest.mark.parametrize("interrupt", [0, 1, 2, 3, 5])
def test_every_kth_batch_is_plain(interrupt):
    plain = [i for i in range(30) if not should_selective_backprop(0.6, i, interrupt=interrupt)]
    assert plain == ([] if interrupt == 0 else list(range(interrupt - 1, 30, interrupt)))


def conv_net(dimensions):
    conv = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[dimensions](2, 3, 3, padding=1)
    norm = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[dimensions](3)
    return nn.Sequential(conv, norm, nn.Dropout(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten())


@pytest.mark.parametrize("dimensions", [3, 4, 5])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.75, 1])
def test_shapes_and_rows(dimensions, keep):
    inputs = torch.randn(21, 2, *[8] * (dimensions - 2))
    targets = torch.arange(21) % 3
    x, y = select_using_loss(inputs, targets, conv_net(dimensions), F.cross_entropy, keep, scale_factor=0.5)
    assert len(x) == len(y) == int(21 * keep)
    rows = [next(i for i in range(21) if torch.equal(inputs[i], row)) for row in x]
    assert rows == sorted(set(rows))
    assert torch.equal(targets[rows], y)


def test_scoring_sees_the_smaller_input():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x.shape)
            return x.mean((2, 3))

    select_using_loss(torch.randn(6, 3, 8, 8), torch.arange(6) % 3, Spy(), F.cross_entropy, scale_factor=0.5)
    assert seen == [(6, 3, 4, 4)]


def test_leaves_no_trace():
    model = conv_net(4)
    trace, states = model_trace(model), global_random_states()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 2, 8, 8, generator=generator)
    select_using_loss(inputs, torch.arange(8) % 3, model, F.cross_entropy, scale_factor=0.5, generator=generator)
    assert same(trace, model_trace(model))
    assert same(states, global_random_states())


def test_inclusion_follows_percentile_to_the_beta():
    # keep 0.5: beta 1. Composer's draws without replacement include the top decile in 0.78 of cases, not 0.95.
    # 4,000 draws of 10 examples a decile: five standard deviations are below 0.02.
    losses = torch.arange(100.0)
    counts = torch.zeros(100)

    def loss(outputs, targets, reduction):
        return outputs.flatten()

    model, generator = nn.Identity(), torch.Generator().manual_seed(0)
    for _ in range(4000):
        x, _ = select_using_loss(losses[:, None], losses, model, loss, generator=generator)
        assert len(x) == 50
        counts[x.flatten().long()] += 1
    deciles = (counts / 4000).view(10, 10).mean(1)
    assert torch.allclose(deciles, torch.arange(0.05, 1, 0.1), atol=0.02)


@pytest.mark.parametrize("loss", [lambda outputs, targets: outputs.sum(), copy.copy])
def test_loss_without_reduction(loss):
    with pytest.raises(TypeError, match="reduction"):
        select_using_loss(torch.randn(4, 2), torch.zeros(4).long(), nn.Linear(2, 2), loss)
