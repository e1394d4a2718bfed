"""Gradients of selected examples against the slow, obvious way: the masked loss, backpropagated through everything."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from selective_backprop.forward_reuse import gradient
from selective_backprop.forward_reuse.gradient import RowGradient, take
from selective_backprop.forward_reuse.rows import Rows

N = 12


class Apply(nn.Module):
    """A function with some parameters in front of it."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(shape or (1,)))

    def forward(self, x):
        return self.function(x * self.scale)


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


class Attention(nn.Module):
    def __init__(self, masked=False):
        super().__init__()
        self.project, self.masked = nn.Linear(8, 24), masked

    def forward(self, x):
        q, k, v = (part.view(len(x), -1, 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        mask = torch.arange(6).view(1, 1, 1, 6) <= torch.arange(len(x)).view(-1, 1, 1, 1) % 6 if self.masked else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class ByHand(nn.Module):
    """Attention as it is written with matrix products."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.project(x).view(len(x), 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return torch.einsum("bhij,bhjd->bihd", (q @ k.transpose(-2, -1) / 2).softmax(-1), v).reshape(len(x), 6, 8)


def tokens(*layers):
    return nn.Sequential(nn.Embedding(9, 8), *layers, nn.Flatten(), nn.LazyLinear(5))


def images(*layers):
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *layers, nn.Flatten(), nn.LazyLinear(5))


ENCODER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}

NETWORKS = {
    "linear": lambda: images(),
    "two heads that meet": lambda: images(Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GELU()))),
    "group norm": lambda: images(nn.GroupNorm(2, 4), nn.ReLU()),
    "instance norm": lambda: images(nn.InstanceNorm2d(4, affine=True), nn.SiLU()),
    "grouped, strided, dilated": lambda: images(nn.Conv2d(4, 8, 3, 2, dilation=2, padding=2, groups=2), nn.Tanh()),
    "transposed convolution": lambda: images(nn.ConvTranspose2d(4, 2, 2, stride=2), nn.LeakyReLU()),
    "max pool": lambda: images(nn.MaxPool2d(2), nn.Hardswish()),
    "average pool": lambda: images(nn.AvgPool2d(2), nn.Sigmoid()),
    "pool to one": lambda: images(nn.AdaptiveAvgPool2d(1), nn.ReLU6()),
    "pool to two": lambda: images(nn.AdaptiveAvgPool2d(2), nn.Mish()),
    "mean over space": lambda: images(Apply(lambda x: x.mean((2, 3)))),
    "squeeze and excite": lambda: images(Apply(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), 4, 1, 1)),
    "padding and slices": lambda: images(Apply(lambda x: F.pad(x, (1, 1, 2, 0))[:, :, 1:, ::2])),
    "parts put together": lambda: images(Apply(lambda x: torch.cat([x[:, :2] * 2, x[:, 2:].relu(), x], 1))),
    "stacked and unbound": lambda: images(Apply(lambda x: torch.stack(x.unbind(1), 3))),
    "split": lambda: images(Apply(lambda x: x.split([1, 3], 1)[1] / 3 - x.split(2, 1)[0][:, :1])),
    "masked": lambda: images(Apply(lambda x: x.masked_fill(x > 1, 0.0))),
    "expanded": lambda: images(Apply(lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1, -1).sum(1).squeeze())),
    "max": lambda: images(Apply(lambda x: x.amax((2, 3)))),
    "batch norm": lambda: images(nn.BatchNorm2d(4), nn.ReLU()),
    "batch norm in eval mode": lambda: images(nn.BatchNorm2d(4).eval(), nn.ReLU()),
    "an operation without a rule": lambda: images(Apply(lambda x: x.cumsum(2)), nn.ReLU(), nn.Conv2d(4, 2, 3)),
    "dropout": lambda: images(nn.Dropout(0.5), nn.Dropout2d(0.2)),
    "1-D": lambda: images(nn.Flatten(2), nn.Conv1d(4, 3, 3), nn.ReLU(), nn.MaxPool1d(2)),
    "3-D": lambda: images(nn.Unflatten(1, (2, 2)), nn.Conv3d(2, 3, (1, 3, 3))),
    "bias by hand": lambda: images(Apply(lambda x: x, 4, 1, 1)),
    "weight norm": lambda: images(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))),
    "embedding": lambda: tokens(nn.Linear(8, 3)),
    "layer norm": lambda: tokens(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU("tanh")),
    "attention": lambda: tokens(Attention()),
    "masked attention": lambda: tokens(Attention(masked=True)),
    "attention by hand": lambda: tokens(ByHand()),
    "encoder": lambda: tokens(nn.TransformerEncoderLayer(**ENCODER)),
    "encoder, norm first": lambda: tokens(nn.TransformerEncoderLayer(**ENCODER, norm_first=True, activation="gelu")),
    "first token": lambda: tokens(nn.TransformerEncoderLayer(**ENCODER), Apply(lambda x: x[:, 0])),
    "recurrent": lambda: tokens(Recurrent()),
    "time first": lambda: tokens(
        Apply(lambda x: x.transpose(0, 1)), nn.Linear(8, 8), Apply(lambda x: x.transpose(0, 1))
    ),
}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 4, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


def gradients(name, loss_of, channels_last=False):
    """Of all parameters of a network; the same ones whenever it is called."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    wants_tokens = isinstance(model[0], nn.Embedding)
    inputs = torch.randint(9, (N, 6)) if wants_tokens else torch.randn(N, 2, 8, 8)
    targets = torch.randint(5, (N,))
    with torch.no_grad():
        model(inputs)
    if channels_last:
        model, inputs = model.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)
    torch.manual_seed(1)  # of dropout
    return torch.autograd.grad(loss_of(model(inputs), targets), list(model.parameters()))


INDEX, WEIGHTS = torch.tensor([1, 4, 5, 9]), torch.tensor([0.1, 0.4, 0.3, 0.2])


def masked(outputs, targets):
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return (losses * torch.zeros(len(losses)).index_copy(0, INDEX, WEIGHTS)).sum()


def reused(outputs, targets):
    taken = take(outputs, Rows(INDEX, len(outputs)), torch.arange(len(INDEX)))
    return (F.cross_entropy(taken, targets[INDEX], reduction="none") * WEIGHTS).sum()


def check_equal(expected, found, tolerance=1e-6):
    for one, other in zip(expected, found, strict=True):
        assert type(other) is not RowGradient
        torch.testing.assert_close(other, one, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_masked_loss(name):
    check_equal(gradients(name, masked), gradients(name, reused))


@pytest.mark.parametrize("name", [name for name in NETWORKS if isinstance(NETWORKS[name]()[0], nn.Conv2d)])
def test_channels_last(name):
    if name in ("1-D", "3-D"):
        pytest.skip("has no such format")
    check_equal(gradients(name, masked, True), gradients(name, reused, True))


SLOWER = ("an operation without a rule", "batch norm", "instance norm", "max", "recurrent", "split")
FASTER = [name for name in NETWORKS if name not in SLOWER]


@pytest.mark.parametrize("name", FASTER)
def test_nothing_goes_over_all_examples(name, caplog):
    """The point of it: every operation has a rule, so that none falls back to all rows."""
    gradient.without_rule.clear()
    with caplog.at_level(logging.INFO, logger="selective_backprop"):
        gradients(name, reused)
    assert not caplog.records


def test_what_has_no_rule_is_told_once(caplog):
    gradient.without_rule.clear()
    with caplog.at_level(logging.INFO, logger="selective_backprop"):
        gradients("an operation without a rule", reused)
        gradients("an operation without a rule", reused)
    (record,) = caplog.records  # the gradient of a cumulative sum
    assert "flip" in record.message and "exact, not faster" in record.message


def test_one_example_and_all_examples():
    for index in (torch.tensor([3]), torch.arange(N)):
        place = torch.arange(len(index))

        def one(outputs, targets, index=index):
            return F.cross_entropy(outputs[index], targets[index])

        def other(outputs, targets, index=index, place=place):
            return F.cross_entropy(take(outputs, Rows(index, N), place), targets[index])

        check_equal(gradients("encoder", one), gradients("encoder", other))


def test_sizes_that_happen_to_be_equal():
    """As many channels, classes and positions as examples or as selected ones: nothing may be taken for a batch."""
    for size in (N, len(INDEX)):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(size, size, 3, padding=1),
            nn.GroupNorm(1, size),
            nn.ReLU(),
            nn.Flatten(2),
            nn.LayerNorm(size * size),
        )
        inputs = torch.randn(N, size, size, size)

        def grads(loss_of, model=model, inputs=inputs):
            outputs = model(inputs).mul(torch.linspace(0, 1, model[4].normalized_shape[0])).square().mean(2)
            return torch.autograd.grad(loss_of(outputs, torch.arange(N) % 4), list(model.parameters()))

        check_equal(grads(masked), grads(reused))


def test_users_hooks_and_functions_see_a_tensor():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(tuple(grad.shape))
            return grad.clone().mul_(2)

    torch.manual_seed(0)
    linear = nn.Linear(3, 5)
    inputs, targets = torch.randn(N, 3), torch.randint(5, (N,))
    grads = []
    for loss_of in (masked, reused):
        outputs = Double.apply(linear(inputs))
        grads.append(torch.autograd.grad(loss_of(outputs, targets), list(linear.parameters())))
    check_equal(*grads)
    assert seen == [(N, 5)] * 2


def test_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
    inputs, targets = torch.randn(N, 6), torch.randint(5, (N,))
    grads = []
    for loss_of in (masked, reused):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(inputs), targets)
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    check_equal(*grads, tolerance=2e-2)
