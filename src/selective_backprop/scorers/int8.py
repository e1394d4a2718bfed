"""Scoring with a copy of the model in 8-bit integers.

torch.ao.quantization warns that it will move to another package. Its warnings are silenced here, and only here; where
it is gone, there is no int8 copy and the log says so.
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

from selective_backprop.no_trace import device_of, preserved_rng
from selective_backprop.scorers.cheap_copy import CheapCopy, losses_of
from selective_backprop.scorers.folded import checked_folding
from selective_backprop.scorers.folding import Folding, restore, same_tensors, snapshot, tensors_of
from selective_backprop.types import Candidates, Task

_ENGINES = ("onednn", "x86", "fbgemm", "qnnpack")  # the first that this build of torch has
_PACKED = (F.linear, F.conv1d, F.conv2d, F.conv3d, nn.PReLU)  # packed out of reach of later weights: left in float32


class Int8Copy(CheapCopy):
    """The model with BatchNorms folded, and weights and activations in 8 bits, but for the last layer.

    Weights that have changed are quantised anew, which takes milliseconds, and has to happen often: at high learning
    rates weights that are three steps old rank candidates worse than 8 bits do. Ranges of activations move slowly;
    to observe them takes a forward pass.

    Args:
        refresh_every: candidate batches between updates of the weights.
        calibration_batches: of the first batches, how many to observe.
        calibrate_every: candidate batches between later observations, of one batch each.
        measure: time it against the model on the first batch. False: use it wherever it can be made.

    >>> Int8Copy(calibration_batches=0)
    Traceback (most recent call last):
    ValueError: calibration_batches must be at least 1, got 0
    """

    name = "int8"

    def __init__(
        self,
        *,
        refresh_every: int = 1,
        calibration_batches: int = 4,
        calibrate_every: int = 100,
        measure: bool = True,
    ) -> None:
        if calibration_batches < 1:
            raise ValueError(f"calibration_batches must be at least 1, got {calibration_batches}")
        if calibrate_every < 1:
            raise ValueError(f"calibrate_every must be at least 1 candidate batch, got {calibrate_every}")
        super().__init__(refresh_every=refresh_every, measure=measure)
        self.calibrate_every = calibrate_every
        self.calibration_batches = calibration_batches
        self._folding: Folding | None = None
        self._observed: fx.GraphModule | None = None

    def _due(self, batch: int) -> bool:
        return super()._due(batch) or self._observes(batch)

    def _observes(self, batch: int) -> bool:
        return batch < self.calibration_batches or batch % self.calibrate_every == 0

    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        self._folding = checked_folding(candidates, task, exact, channels_last=False)
        self._observed = _observing(self._folding.module)
        self._observe(candidates, task)
        quantised = _quantised(self._observed)
        with _quantising():  # its first call warns too
            losses_of(quantised, candidates, task)
        return quantised

    def _observe(self, candidates: Candidates, task: Task) -> None:
        assert self._observed is not None
        with torch.no_grad(), preserved_rng(device_of(task.model)):  # not NoTrace, which would undo what is observed
            task.forward(self._observed, candidates.data)

    def _follow(self, model: nn.Module) -> None:
        assert self._folding is not None and self._observed is not None and self._module is not None
        before = snapshot(self._folding.module)
        self._folding.follow(model)  # its layers are those of the observed network
        if not same_tensors(self._folding.module, before):  # most candidate batches are not followed by a step
            _requantise(self._module, self._observed)

    def _refresh(self, candidates: Candidates, task: Task, batch: int) -> None:
        if not self._observes(batch):
            self._follow(task.model)
            return
        assert self._folding is not None and self._observed is not None
        self._folding.follow(task.model)
        if batch >= self.calibration_batches:
            _forget_ranges(self._observed)  # they moved with the weights
        self._observe(candidates, task)
        self._module = _quantised(self._observed)

    def _contents(self) -> dict[str, Any]:
        assert self._observed is not None
        return {"observed": snapshot(self._observed)}

    def _restore(self, contents: dict[str, Any]) -> None:
        assert self._observed is not None
        restore(self._observed, contents["observed"])
        self._module = _quantised(self._observed)


@contextmanager
def _quantising() -> Iterator[None]:
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


def _observing(model: nn.Module) -> fx.GraphModule:
    """The same network and the same layers, with observers of the ranges of activations between them."""
    with _quantising():
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


def _forget_ranges(observed: nn.Module) -> None:
    for module in observed.modules():
        reset: Any = getattr(module, "reset_min_max_vals", None)
        if reset is not None:
            reset()


def _last_layers(model: nn.Module) -> list[str]:
    assert isinstance(model, fx.GraphModule)
    return [str(node.target) for end in model.graph.find_nodes(op="output") for node in end.all_input_nodes]


def _quantised(observed: fx.GraphModule) -> nn.Module:
    with _quantising():
        from torch.ao.quantization.quantize_fx import convert_fx

        quantised: nn.Module = convert_fx(copy.deepcopy(observed))
        _requantise(quantised, observed)
        return quantised


@torch.no_grad()
def _requantise(quantised: nn.Module, observed: nn.Module) -> None:
    """Give the quantised network the weights of the observed one; ranges of activations stay."""
    with _quantising():
        theirs = tensors_of(observed)
        for name, tensor in tensors_of(quantised).items():  # of what is not quantised
            if name in theirs:
                tensor.copy_(theirs[name])
        for name, module in quantised.named_modules():
            if hasattr(module, "set_weight_bias") and hasattr(module, "scale"):
                layer: Any = observed.get_submodule(name)
                layer = layer[0] if isinstance(layer, nn.Sequential) else layer  # joined with its ReLU
                module.set_weight_bias(_in_8_bits(layer.weight), layer.bias)


def _in_8_bits(weight: Tensor) -> Tensor:
    """Symmetric, each output channel at its own scale."""
    scale = (weight.flatten(1).abs().amax(1) / 127).clamp_min(1e-12)
    zeros = torch.zeros(len(scale), dtype=torch.int64, device=weight.device)
    return torch.quantize_per_channel(weight, scale, zeros, axis=0, dtype=torch.qint8)
