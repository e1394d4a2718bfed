"""Networks in 8-bit integers, by torch.ao.quantization.

It warns that it will move to another package. Its warnings are silenced here, and only here; where it is gone, there is
no int8 copy and the log says so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from selective_backprop.no_trace import preserved_rng
from selective_backprop.scorers.folding import tensors_of

_ENGINES = ("onednn", "x86", "fbgemm", "qnnpack")  # the first that this build of torch has
_PACKED = (F.linear, F.conv1d, F.conv2d, F.conv3d, nn.PReLU)  # packed out of reach of later weights: left in float32


@contextmanager
def quantising() -> Iterator[None]:
    """The engine to quantise for, which is global in torch; no warnings of torch.ao's move; random states kept.

    New layers draw weights before they are given theirs.
    """
    quantized = torch.backends.quantized
    engine = next((name for name in _ENGINES if name in quantized.supported_engines), None)
    if engine is None:
        raise RuntimeError(f"this build of torch has none of the engines {', '.join(_ENGINES)}")
    before = quantized.engine
    with warnings.catch_warnings(), preserved_rng(torch.device("cpu")):
        warnings.simplefilter("ignore")
        quantized.engine = engine
        try:
            yield
        finally:
            quantized.engine = before


def observing(model: nn.Module) -> fx.GraphModule:
    """The same network and the same layers, with observers of the ranges of activations between them."""
    with quantising():
        from torch.ao.quantization import QConfig, get_default_qconfig_mapping, observer
        from torch.ao.quantization.quantize_fx import prepare_fx

        mapping = get_default_qconfig_mapping(torch.backends.quantized.engine)
        in_8_bits = QConfig(activation=observer.MinMaxObserver, weight=observer.default_per_channel_weight_observer)  # type: ignore[no-untyped-call]
        mapping.set_global(in_8_bits)
        for layer_type in _PACKED:
            mapping.set_object_type(layer_type, None)
        for name in _last_layers(model):  # logits in 8 bits would make the losses of easy examples equal
            mapping.set_module_name(name, None)
        return prepare_fx(model, mapping, example_inputs=())


def forget_ranges(observed: nn.Module) -> None:
    """As before the first observation."""
    for module in observed.modules():
        reset: Any = getattr(module, "reset_min_max_vals", None)
        if reset is not None:
            reset()


def _last_layers(model: nn.Module) -> list[str]:
    assert isinstance(model, fx.GraphModule)
    return [str(node.target) for end in model.graph.find_nodes(op="output") for node in end.all_input_nodes]


def quantised(observed: fx.GraphModule) -> nn.Module:
    """The network in 8 bits, for the ranges that were observed."""
    with quantising():
        from torch.ao.quantization.quantize_fx import convert_fx

        module: nn.Module = convert_fx(copy.deepcopy(observed))
        requantise(module, observed)
        return module


@torch.no_grad()
def requantise(module: nn.Module, observed: nn.Module) -> None:
    """Give the quantised network the weights of the observed one; ranges of activations stay."""
    with quantising():
        theirs = tensors_of(observed)
        for name, tensor in tensors_of(module).items():  # of what is not quantised
            if name in theirs:
                tensor.copy_(theirs[name])
        for name, part in module.named_modules():
            if hasattr(part, "set_weight_bias") and hasattr(part, "scale"):
                layer: Any = observed.get_submodule(name)
                layer = layer[0] if isinstance(layer, nn.Sequential) else layer  # joined with its ReLU
                part.set_weight_bias(_in_8_bits(layer.weight), layer.bias)


def _in_8_bits(weight: Tensor) -> Tensor:
    """Symmetric, each output channel at its own scale."""
    scale = (weight.flatten(1).abs().amax(1) / 127).clamp_min(1e-12)
    zeros = torch.zeros(len(scale), dtype=torch.int64, device=weight.device)
    return torch.quantize_per_channel(weight, scale, zeros, axis=0, dtype=torch.qint8)
