"""Sizes against published ones, shapes, gradients, seeds, and a user's own network."""

import random
import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from selective_backprop_lab.models import MODELS, make_model, wide_resnet


def wide_resnet_by_hand(depth, widen_factor):
    """Stem, blocks, last normalisation, classifier of 10 classes."""
    total, channels_in, blocks = 27 * 16, 16, (depth - 4) // 6
    for width in (16 * widen_factor, 32 * widen_factor, 64 * widen_factor):
        total += 2 * channels_in + 9 * channels_in * width + 2 * width + 9 * width * width
        total += channels_in * width if channels_in != width else 0
        total += (blocks - 1) * 2 * (2 * width + 9 * width * width)
        channels_in = width
    return total + 2 * channels_in + 10 * channels_in + 10


# Parameters with 10 classes and 3 channels, unless told otherwise.
PUBLISHED = {
    # He et al. 2015, table 6, to two digits. To the last one in many implementations with shortcuts of option A.
    "resnet20": 269_722,  # 0.27 million in the paper
    "resnet56": 853_018,  # 0.85
    # As torchsummary counts those of github.com/kuangliu/pytorch-cifar.
    "resnet18": 11_173_962,
    # With 1000 classes; torchvision's documentation of resnet50.
    "resnet50": 25_557_032,
    # Table of github.com/osmr/imgclsmob; 36.5 million in Zagoruyko and Komodakis 2016.
    "wrn_28_10": 36_479_194,
    # Not published: ResNet-20 without the two further blocks of each stage; three convolutions and a classifier.
    "small_resnet": 269_722 - 2 * sum(2 * 9 * width * width + 2 * 2 * width for width in (16, 32, 64)),
    "small_cnn": 9 * (3 * 32 + 32 * 32 + 32 * 64) + 2 * (32 + 32 + 64) + 650,
    # All channels of ResNet-20 halved.
    "resnet20_narrow": 9 * (3 * 8 + 6 * 64 + 128 + 5 * 256 + 512 + 5 * 1024)
    + 2 * 7 * (8 + 16 + 32)
    - 2 * 16
    - 2 * 32
    + 330,
    **{
        name: 16 * 3 * width + 9 * (2 + 8) * width * width + 2 * 7 * width + 10 * 4 * width + 10
        for name, width in (("strided_cnn_tiny", 8), ("strided_cnn", 16), ("strided_cnn_wide", 32))
    },
}
TEXT = [name for name in MODELS if name.startswith("byte_transformer")]

# Millions of multiply-adds per 32x32 image, 224x224 for resnet50. They tell where images shrink; parameters do not.
MULTIPLY_ADDS = {
    # github.com/osmr/imgclsmob
    "resnet20": 41.29,
    "resnet56": 127.06,
    "wrn_28_10": 5246.98,
    # those of github.com/kuangliu/pytorch-cifar, counted by thop
    "resnet18": 556.65,
    # torchvision's documentation
    "resnet50": 4090,
}


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def finite_gradients(model, images):
    outputs = model(images)
    nn.functional.cross_entropy(outputs, torch.arange(len(images))).backward()
    trained = [(name, p.grad) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, gradient in trained if gradient is None or not gradient.isfinite().all()]
    assert not missing
    return outputs


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        model = MODELS[name](num_classes=1000 if name == "resnet50" else 10, channels=3)
    assert count(model) == PUBLISHED[name]


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds_are_as_many_as_published(name):
    size, num_classes = (224, 1000) if name == "resnet50" else (32, 10)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        MODELS[name](num_classes=num_classes, channels=3)(torch.empty(1, 3, size, size))
    # Published counts have those of normalisation and pooling, too: up to 4% more.
    assert 0.96 < counter.get_total_flops() / 2e6 / MULTIPLY_ADDS[name] <= 1


@pytest.mark.parametrize(
    ("depth", "widen_factor", "millions"),
    # Millions of parameters as in the tables of Zagoruyko and Komodakis 2016.
    [
        (40, 1, 0.6),
        (40, 2, 2.2),
        (40, 4, 8.9),
        (40, 8, 35.7),
        (28, 10, 36.5),
        (28, 12, 52.5),
        (22, 8, 17.2),
        (22, 10, 26.8),
        (16, 4, 2.7),
        (16, 8, 11.0),
        (16, 10, 17.1),
    ],
)
def test_wide_resnets_of_the_paper(depth, widen_factor, millions):
    with torch.device("meta"):
        parameters = count(wide_resnet(depth, widen_factor))
    assert round(parameters / 1e6, 1) == millions
    assert parameters == wide_resnet_by_hand(depth, widen_factor)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TEXT and not name.startswith("wrn")])
def test_every_parameter_gets_a_gradient(name):
    model = make_model(name, num_classes=10, channels=3, seed=0)
    assert finite_gradients(model, torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_seed_makes_the_weights_and_leaves_the_global_state():
    before, python = torch.get_rng_state(), random.getstate()
    first, again, other = (make_model("resnet20", num_classes=10, channels=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)

    torch.manual_seed(1)
    plain = make_model("resnet20", num_classes=10, channels=3)
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), plain.parameters(), strict=True))
    assert not torch.equal(torch.get_rng_state(), before), "without a seed the global generator is drawn from"


def test_initial_weights_of_networks_in_use_stay_the_same():
    # Sums of absolute weights. Results in the repository were made with these.
    sums = {
        name: sum(
            p.abs().sum().item() for p in make_model(name, num_classes=10, channels=channels, seed=0).parameters()
        )
        for name, channels in (("resnet20", 3), ("small_cnn", 1))
    }
    assert sums == pytest.approx({"resnet20": 7275.8746, "small_cnn": 1027.7483}, rel=1e-6)


OWN = """
import torch

def linear(num_classes, channels):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, num_classes))

def nothing(num_classes, channels):
    return None

def no_channels(num_classes):
    return torch.nn.Linear(1, num_classes)

width = 16
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    package = tmp_path / "own_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(OWN)
    (package / "broken.py").write_text("import no_such_module_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    return package.name


def test_a_network_of_ones_own(own):
    model = make_model(f"{own}.nets:linear", num_classes=4, channels=2, seed=3)
    assert finite_gradients(model, torch.randn(2, 2, 8, 8)).shape == (2, 4)
    again = make_model(f"{own}.nets:linear", num_classes=4, channels=2, seed=3)
    assert torch.equal(model[1].weight, again[1].weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet-20", "there is no model 'resnet-20': did you mean resnet20? There are small_cnn, "),
        ("WRN-28-10", "did you mean wrn_28_10?"),
        ("xyz", "there is no model 'xyz'. There are small_cnn, "),
        ("", "or your own as 'package.module:function'"),
        ("{own}.nets:", "name your own model as 'package.module:function', got"),
        (":linear", "name your own model as 'package.module:function', got ':linear'"),
        (".nets:linear", "name your own model as 'package.module:function', got '.nets:linear'"),
        ("{own}.net:linear", "Install it, or put its folder on PYTHONPATH"),
        ("{own}.broken:linear", "No module named 'no_such_module_anywhere'"),
        (
            "{own}.nets:linaer",
            "has no function 'linaer' for model '{own}.nets:linaer'; its functions: linear, nothing, ",
        ),
        ("{own}.nets:width", "has no function 'width'"),
        ("{own}:linear", "its functions: none"),
        ("{own}.nets:nothing", "'{own}.nets:nothing' must return an nn.Module, got NoneType"),
        (
            "{own}.nets:no_channels",
            "must take num_classes= and channels=: got an unexpected keyword argument 'channels'",
        ),
    ],
)
def test_names_that_are_wrong(own, name, message):
    with pytest.raises(ValueError, match=re.escape(message.replace("{own}", own))):
        make_model(name.replace("{own}", own), num_classes=10, channels=3)


@pytest.mark.parametrize("name", ["densenet121", "mobilenet_v2", "googlenet"])
def test_networks_of_torchvision(name):
    pytest.importorskip("torchvision")
    model = make_model(f"torchvision:{name}", num_classes=10, channels=3, seed=0)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="in colour, with 3 channels, got 1"):
        make_model(f"torchvision:{name}", num_classes=10, channels=1)


def test_a_text_is_classified_by_its_bytes_alone():
    model = make_model("byte_transformer", num_classes=26, channels=1, seed=0).eval()
    texts = torch.randint(256, (3, 1, 1, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    together, alone = model(texts), model(texts[1:2])
    assert together.shape == (3, 26)
    assert torch.allclose(together[1:2], alone, atol=1e-6)
    changed = texts.clone()
    changed[1, 0, 0, 63] ^= 1
    assert not torch.allclose(model(changed)[1], together[1])
    assert torch.equal(model(changed)[0], together[0])
    model(texts).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
