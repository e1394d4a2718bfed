"""Converts networks to 8-bit integers with torch.ao.quantization.

It warns that it will move to another package. Its warnings are silenced here, and only here; where it is gone, there is
no int8 copy and the log says so.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from selective_backprop.model_copies.folding import tensors_of

_ENGINES = ("onednn", "x86", "fbgemm", "qnnpack")  # the first one that this build of torch has is used
_PACKED = (F.linear, F.conv1d, F.conv2d, F.conv3d, nn.PReLU)  # left in float32: packed weights could not be updated
_DRAWS = (nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_)


class _Engine:
    """Sets torch's quantisation engine, which is global. The last one to leave restores the user's engine."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, ""

    def __enter__(self) -> None:
        quantized = torch.backends.quantized
        engine = next((name for name in _ENGINES if name in quantized.supported_engines), None)
        if engine is None:
            raise RuntimeError(f"this build of torch has none of the engines {', '.join(_ENGINES)}")
        with self._lock:
            if not self._inside:
                self._before, quantized.engine = quantized.engine, engine
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.quantized.engine = self._before


_engine = _Engine()
_one_at_a_time = threading.RLock()  # whoever leaves catch_warnings restores the filters of all threads


class _WithoutDraws(TorchFunctionMode):
    """Keeps new layers from drawing random weights, which are replaced anyway.

    Restoring the random state afterwards would not do: it would undo what training draws meanwhile in another thread.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def quantising() -> Iterator[None]:
    """Use our engine within the block, silence torch.ao's warnings, and leave random states unchanged."""
    with _one_at_a_time, warnings.catch_warnings(), _WithoutDraws(), _engine:
        warnings.simplefilter("ignore")
        yield


def observing(model: nn.Module, *, fuse_sums: bool = True) -> fx.GraphModule:
    """Return the same network, with observers between its layers that record the ranges of activations.

    Args:
        model: a traced network in eval mode.
        fuse_sums: make sums of residual blocks part of the convolution before them, if the engine can.
    """
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
        return prepare_fx(model, mapping, example_inputs=(), backend_config=_backend(fuse_sums))


def _backend(fuse_sums: bool = True) -> Any:
    """Describe which operations the engine can join into one."""
    from torch.ao.quantization.backend_config import get_native_backend_config, get_onednn_backend_config

    can = torch.backends.quantized.engine == "onednn"
    return get_onednn_backend_config() if can and fuse_sums else get_native_backend_config()


def forget_ranges(observed: nn.Module) -> None:
    """Forget all ranges that were observed."""
    for module in observed.modules():
        reset: Any = getattr(module, "reset_min_max_vals", None)
        if reset is not None:
            reset()


def _last_layers(model: nn.Module) -> list[str]:
    assert isinstance(model, fx.GraphModule)
    return [str(node.target) for end in model.graph.find_nodes(op="output") for node in end.all_input_nodes]


class Quantised(nn.Module):
    """The network in 8 bits, made for the ranges that were observed."""

    def __init__(self, observed: fx.GraphModule) -> None:
        super().__init__()
        with quantising():
            from torch.ao.quantization.quantize_fx import convert_fx

            from selective_backprop.model_copies.fusing import slice_before_dequantising

            self.network: fx.GraphModule = convert_fx(copy.deepcopy(observed), backend_config=_backend())
        slice_before_dequantising(self.network)
        self.follow(observed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _engine:
            return self.network(*args, **kwargs)

    @torch.no_grad()
    def follow(self, observed: nn.Module) -> None:
        """Copy the weights of the observed network. Ranges of activations do not change."""
        with quantising():
            theirs = tensors_of(observed)
            for name, tensor in tensors_of(self.network).items():  # of what is not quantised
                if name in theirs:
                    tensor.copy_(theirs[name])
            for name, part in self.network.named_modules():
                if hasattr(part, "set_weight_bias") and hasattr(part, "scale"):
                    layer: Any = observed.get_submodule(name)
                    layer = layer[0] if isinstance(layer, nn.Sequential) else layer  # joined with its ReLU or sum
                    part.set_weight_bias(_in_8_bits(layer.weight), layer.bias)


def _in_8_bits(weight: Tensor) -> Tensor:
    """Quantise a weight symmetrically, with a scale for each output channel."""
    scale = (weight.flatten(1).abs().amax(1) / 127).clamp_min(1e-12)
    zeros = torch.zeros(len(scale), dtype=torch.int64, device=weight.device)
    return torch.quantize_per_channel(weight, scale, zeros, axis=0, dtype=torch.qint8)
