"""Networks for images, and one for text, by name.

Initial weights are torch's defaults unless a network's docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from selective_backprop_lab.models.byte_transformer import byte_transformer
from selective_backprop_lab.models.cifar_resnet import cifar_resnet
from selective_backprop_lab.models.resnet import resnet18, resnet50
from selective_backprop_lab.models.small import small_cnn, small_resnet, strided_cnn
from selective_backprop_lab.models.speedrun import Speedrun
from selective_backprop_lab.models.wide_resnet import wide_resnet
from selective_backprop_lab.names import suggestion
from selective_backprop_lab.plugins import import_extra, load_function

MODELS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": small_cnn,
    "strided_cnn": strided_cnn,
    "strided_cnn_tiny": partial(strided_cnn, width=8),
    "strided_cnn_wide": partial(strided_cnn, width=32, stem_stride=4),
    "strided_cnn_dense": partial(strided_cnn, width=32),
    "small_resnet": small_resnet,
    "speedrun_w4": partial(Speedrun, width=4),
    "speedrun_w8": partial(Speedrun, width=8),
    "speedrun_w16": partial(Speedrun, width=16),
    "speedrun_w32": partial(Speedrun, width=32),
    "speedrun_w64": Speedrun,
    "resnet20": partial(cifar_resnet, 20),
    "resnet20_narrow": partial(cifar_resnet, 20, width=8),
    "resnet56": partial(cifar_resnet, 56),
    "resnet18": resnet18,
    "resnet50": resnet50,
    "wrn_16_8": partial(wide_resnet, 16, 8),
    "wrn_28_10": partial(wide_resnet, 28, 10),
    "byte_transformer": byte_transformer,
    "byte_transformer_large": partial(byte_transformer, width=256),
    "byte_transformer_tiny": partial(byte_transformer, width=32, depth=1),
}
"""All networks by name. Each is called with num_classes= and channels=."""


def make_model(name: str, *, num_classes: int, channels: int, seed: int | None = None) -> nn.Module:
    """Make a network by its name in MODELS, one of torchvision's as `torchvision:NAME`, or your own.

    Your own is named `package.module:function`, and called with num_classes= and channels=. With a seed, the network is
    made on the CPU, its weights follow from the seed alone, and torch's global random state is left as it was.

    >>> make_model("resnet20", num_classes=100, channels=1, seed=0)[0]
    Conv2d(1, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    function = find_model(name)
    if seed is None:
        model = function(num_classes=num_classes, channels=channels)
    else:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed the GPUs
            model = function(num_classes=num_classes, channels=channels)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} must return an nn.Module, got {type(model).__name__}")
    return model


def find_model(name: str) -> Callable[..., object]:
    """Find the function that makes a network, by the same names as `make_model`.

    >>> find_model("resnet-20")
    Traceback (most recent call last):
    ValueError: there is no model 'resnet-20': did you mean resnet20? There are ...
    """
    if name.startswith("torchvision:"):
        return partial(_of_torchvision, name.partition(":")[2])
    if ":" in name:
        return load_function("model", name, "num_classes", "channels")
    if name not in MODELS:
        near = suggestion(name.lower().replace("-", "_"), MODELS) or "."
        raise ValueError(
            f"there is no model {name!r}{near} There are {', '.join(MODELS)}. Name one of torchvision as "
            "'torchvision:NAME', or your own as 'package.module:function'"
        )
    return MODELS[name]


def _of_torchvision(name: str, *, num_classes: int, channels: int) -> nn.Module:
    """Make a network of torchvision, for images in colour."""
    models = import_extra("torchvision.models")
    if channels != 3:
        raise ValueError(f"networks of torchvision take images in colour, with 3 channels, got {channels}")
    alone = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = models.get_model(name, num_classes=num_classes, **alone)
    return model
