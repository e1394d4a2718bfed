"""PEFT's layers, frozen and quantised base models: scoring leaves them as they are, and only adapters are trained."""

import copy
import itertools
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

pytest.importorskip("peft", reason="needs the extra [trl]")
from peft import LoraConfig, get_peft_model

import selective_backprop as sb
from selective_backprop.inference import NoTrace
from selective_backprop.testing import same
from tests.helpers import digits

pytestmark = pytest.mark.filterwarnings("default")  # what other packages warn of is their own affair
SCORINGS = ["eval", "train", "pipelined"]


class Digits(nn.Module):
    """A small classifier with a norm that it keeps statistics in."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.1)
        self.second, self.head = nn.Linear(32, 16), nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.second(self.drop(self.norm(self.first(inputs.flatten(1))).relu())).relu())


class Frozen8Bit(nn.Module):
    """A frozen linear layer whose weight is stored in unsigned integers of 8 bits, with a scale for each output."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        stored = (layer.weight.detach() / scale + 128).round().to(torch.uint8)
        self.weight = nn.Parameter(stored, requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, inputs):
        return inputs @ ((self.weight.float() - 128) * self.scale).T


def make_model(*, quantised=False, **options):
    torch.manual_seed(0)
    model = Digits()
    if quantised:
        model.first = Frozen8Bit(model.first)
    names = ["second"] if quantised else ["first", "second"]
    return get_peft_model(model, LoraConfig(r=2, target_modules=names, lora_dropout=0.1, **options))


MODELS = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["head"]},
    "8 bits": {"quantised": True},
}


def make_loader(model, method, **options):
    data = DataLoader(digits(), 16, generator=torch.Generator())  # else it draws a seed from the global one
    return sb.SelectiveLoader(data, model, nn.CrossEntropyLoss(), method, num_epochs=1, **options)


def everything_of(model):
    """Weights, buffers, gradients, what is trained, and all flags."""
    named = dict(model.named_parameters())
    return copy.deepcopy(
        {
            "weights": model.state_dict(),
            "gradients": {name: p.grad for name, p in named.items()},
            "trained": [name for name, p in named.items() if p.requires_grad],
            "modes": {name: module.training for name, module in model.named_modules()},
            "random": torch.get_rng_state(),
        }
    )


def step(loader, inputs, targets):
    loss = loader.loss(loader.model(inputs), targets)
    loss.backward()
    with torch.no_grad():
        for parameter in loader.model.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
                parameter.grad = None
    return loss


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("kind", MODELS)
def test_1_scoring_leaves_no_trace_on_adapters(kind, scoring):
    model = make_model(**MODELS[kind])
    loader = make_loader(model, sb.selective_backprop(0.5, scoring=scoring))
    before = everything_of(model)
    next(iter(loader))
    assert same(before, everything_of(model))


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("kind", MODELS)
def test_only_the_adapter_is_trained(kind, scoring):
    model = make_model(**MODELS[kind])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    loader = make_loader(model, sb.selective_backprop(0.5, scoring=scoring))
    for inputs, targets in loader:
        assert torch.isfinite(step(loader, inputs, targets))
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora" in name or "modules_to_save" in name for name in changed)


@pytest.mark.parametrize("kind", MODELS)
def test_forward_reuse_has_the_gradients_of_the_selected_examples(kind):
    model = make_model(**MODELS[kind]).eval()  # in train mode BatchNorm and dropout mix or draw anew
    loss_fn = sb.forward_reuse.SelectiveLoss(nn.CrossEntropyLoss(), sb.selective_backprop(0.5))
    for inputs, targets in itertools.islice(DataLoader(digits(), 16), 4):
        loss_fn(model(inputs), targets).backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        chosen = loss_fn.selection.positions
        nn.functional.cross_entropy(model(inputs)[chosen], targets[chosen]).backward()
        assert found and 0 < len(chosen) <= len(targets)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                assert torch.allclose(found[name], parameter.grad, rtol=1e-4, atol=1e-6), name
        model.zero_grad()


# ---- layers that convert their weights


class Converts(nn.Module):
    """Like Linear4bit of bitsandbytes on a CPU, this packs its weight in another way when it is in eval mode."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8.0).view(8, 1), requires_grad=False)

    def forward(self, inputs):
        if not self.training:
            self.weight.data = self.weight.data.view(2, 4)
        return inputs


def test_a_layer_that_converts_its_weight_in_eval_mode_is_told_of(caplog):
    with caplog.at_level(logging.WARNING), NoTrace(guarded := nn.Sequential(Converts()))():
        guarded(torch.ones(1))
    assert "changes its weights (0.weight)" in caplog.text
