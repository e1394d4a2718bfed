"""Makes the sums of residual blocks part of the 8-bit convolution before them, if that is safe.

oneDNN adds the shortcut while it writes a convolution's result. It writes into the shortcut's memory, and does not
check its shape. So neither the convolution nor any later operation may read the shortcut, and its shape must be that of
the result.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.ao.nn import intrinsic
from torch.nn import functional as F

_SUMS = (intrinsic.ConvAdd2d, intrinsic.ConvAddReLU2d)
_NEW_MODULES = (nn.Conv2d, intrinsic.ConvReLU2d, *_SUMS)  # whose result is in memory of its own
_NEW_FUNCTIONS = (operator.add, torch.add, F.pad)
_VIEWS = (int, slice, type(None), type(...))


def relus_as_modules(network: fx.GraphModule) -> None:
    """Replace ReLU functions by modules: torch.ao joins only modules with a convolution and a sum."""
    functions = [node for node in network.graph.nodes if node.target in (F.relu, torch.relu)]
    for number, node in enumerate(functions):
        name = f"_relu_{number}"
        network.add_submodule(name, nn.ReLU())
        with network.graph.inserting_after(node):
            module = network.graph.call_module(name, node.args[:1])
        node.replace_all_uses_with(module)
        network.graph.erase_node(node)
    network.recompile()


class SumsSeen:
    """Watches an observed network: does everything that convolutions add have the shape of their results?"""

    def __init__(self) -> None:
        self.fit = True

    @contextmanager
    def watching(self, observed: nn.Module) -> Iterator[None]:
        sums = [module for module in observed.modules() if isinstance(module, _SUMS)]
        handles = [module.register_forward_hook(self._see) for module in sums]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _see(self, _: nn.Module, summands: tuple[Tensor, Tensor], result: Tensor) -> None:
        # A dimension of size 1 may be stretched in a later, larger batch.
        self.fit &= summands[1].shape == result.shape and 1 not in result.shape


def may_overwrite(observed: fx.GraphModule) -> bool:
    """Whether no operation reads a summand while it is overwritten, or later."""
    order = {node: place for place, node in enumerate(observed.graph.nodes)}

    def fits(node: fx.Node) -> bool:
        read, added = (set(_sharing_memory(observed, argument)) for argument in node.args[:2])
        return not read & added and all(order[user] <= order[node] for part in added for user in part.users)

    modules = observed.graph.find_nodes(op="call_module")
    return all(fits(node) for node in modules if isinstance(observed.get_submodule(str(node.target)), _SUMS))


def _sharing_memory(network: fx.GraphModule, node: Any) -> Iterator[fx.Node]:
    """Yield this value and all values of which it may be a view."""
    yield node
    is_module = node.op == "call_module"
    is_new = isinstance(network.get_submodule(str(node.target)), _NEW_MODULES) if is_module else False
    if not is_new and node.target not in _NEW_FUNCTIONS:
        for earlier in node.all_input_nodes:
            yield from _sharing_memory(network, earlier)


def slice_before_dequantising(network: fx.GraphModule) -> None:
    """Slice 8-bit tensors before they are converted: torch.ao would convert the whole tensor to 32 bits first."""
    for node in network.graph.find_nodes(op="call_function", target=operator.getitem):
        whole, index = node.args
        parts = index if isinstance(index, tuple) else (index,)
        in_32_bits = isinstance(whole, fx.Node) and whole.op == "call_method" and whole.target == "dequantize"
        if in_32_bits and len(whole.users) == 1 and all(isinstance(part, _VIEWS) for part in parts):
            with network.graph.inserting_before(node):
                view = network.graph.call_function(operator.getitem, (whole.args[0], index))
                node.replace_all_uses_with(network.graph.call_method("dequantize", (view,)))
            network.graph.erase_node(node)
            network.graph.erase_node(whole)
    network.recompile()
