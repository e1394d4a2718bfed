"""Makes a copy of a network without BatchNorms: their scales and shifts go into the layers before them."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, fx, nn

from selective_backprop.inference import device_of, preserved_rng, to_eval

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Folding:
    """A copy of a network in eval mode, with BatchNorms folded, which can follow the weights of the original.

    Args:
        model: the network to copy and follow. It is not changed.
        trace: find layers followed by a BatchNorm, and fold them. Raises what torch.fx raises for a network that
            it cannot follow, such as one whose path depends on the values of its inputs.
        channels_last: store the weights of convolutions in the channels-last layout, which is usually faster.

    >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
    >>> folding = Folding(model)
    >>> folding.pairs
    [('0', '1')]
    >>> folding.module(torch.ones(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, model: nn.Module, *, trace: bool = True, channels_last: bool = True) -> None:
        self.pairs: list[tuple[str, str]] = []
        """Names of layers and of the BatchNorms that were folded into them."""
        self.traced = trace
        with preserved_rng(device_of(model)):  # tracing runs the forward's Python code, which may draw
            duplicate = to_eval(copy.deepcopy(model)).requires_grad_(False)
            self.module: nn.Module = self._fold(duplicate) if trace else duplicate
        if channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.follow(model)

    def _fold(self, model: nn.Module) -> fx.GraphModule:
        traced = fx.symbolic_trace(model)
        modules = dict(traced.named_modules())
        called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
        owners = [id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False)]
        for node in list(traced.graph.nodes):
            before = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
            if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
                continue
            layer, norm = modules[str(before.target)], modules[str(node.target)]
            if type(layer) not in _LAYERS or type(norm) not in _NORMS or norm.running_mean is None:
                continue
            if called.count(before.target) > 1 or owners.count(id(layer.weight)) > 1:
                continue  # another layer uses the same weight, and needs it without the scale
            if layer.bias is None:
                layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)), requires_grad=False)
            self.pairs.append((str(before.target), str(node.target)))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
        traced.delete_all_unused_submodules()
        traced.recompile()
        return traced

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Copy the model's current weights and statistics, in place."""
        theirs = tensors_of(model)
        folded = {f"{layer}.{part}" for layer, _ in self.pairs for part in ("weight", "bias")}
        for name, tensor in tensors_of(self.module).items():
            if name in theirs and name not in folded:  # not a constant that tracing found
                tensor.copy_(theirs[name])
        for name, norm in self.pairs:
            layer = self.module.get_submodule(name)
            weight, bias = _folded(theirs, name, norm, model.get_submodule(norm).eps)  # type: ignore[arg-type]
            layer.weight.copy_(weight)  # type: ignore[operator]
            layer.bias.copy_(bias)  # type: ignore[operator]


def _folded(tensors: dict[str, Tensor], layer: str, norm: str, eps: float) -> tuple[Tensor, Tensor]:
    """Compute weight and bias of one layer that does the same as a layer followed by a BatchNorm."""
    weight, mean = tensors[f"{layer}.weight"], tensors[f"{norm}.running_mean"]
    scale = (tensors[f"{norm}.running_var"] + eps).rsqrt()
    if f"{norm}.weight" in tensors:
        scale = scale * tensors[f"{norm}.weight"]
    bias = (tensors.get(f"{layer}.bias", torch.zeros_like(mean)) - mean) * scale + tensors.get(f"{norm}.bias", 0)
    return weight * scale.reshape(-1, *[1] * (weight.dim() - 1)), bias


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, also those that are not in the state_dict."""
    named = itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return dict(named)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copy all parameters and buffers of the model."""
    return {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}


@torch.no_grad()
def restore(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Write tensors from `snapshot` back into the model, in place."""
    for name, tensor in tensors_of(model).items():
        tensor.copy_(tensors[name])


def same_tensors(model: nn.Module, tensors: dict[str, Tensor]) -> bool:
    """Whether the model has not changed since `snapshot`. This waits for a GPU."""
    return all(torch.equal(tensor, tensors[name]) for name, tensor in tensors_of(model).items())
