"""Run a model without leaving a trace on it or on any global random state."""

from __future__ import annotations

import copy
import itertools
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

ScoringMode = Literal["eval", "train"]
_logger = logging.getLogger(__name__)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel or torch.compile, so that scoring has no effect on the wrapper.

    DDP's forward would broadcast buffers and wait for the other ranks. A compiled model would be compiled a second time
    for eval mode. FSDP is not removed, because its forward gathers the parameters.
    """
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP spreads the model's parameters over ranks, so that all ranks must run it together."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # if it is not imported, nothing is sharded
    kinds = tuple(getattr(fsdp, name) for name in ("FSDPModule", "FullyShardedDataParallel") if hasattr(fsdp, name))
    return any(isinstance(module, kinds) for module in model.modules()) if kinds else False


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter (or buffer); the CPU for a model without any."""
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def to_eval(model: nn.Module) -> nn.Module:
    """Put a model into eval mode, except for layers that would convert their weights there."""
    model.eval()
    for module in _converting(model):
        module.training = True
    return model


def _converting(model: nn.Module) -> list[nn.Module]:
    """Return the layers that convert their weights in eval mode, and cannot be trained through afterwards.

    On a CPU, Linear4bit of bitsandbytes packs its weights in another way for inference. Its own output is the same in
    both modes.
    """
    bitsandbytes: Any = sys.modules.get("bitsandbytes")  # if it is not imported, the model has none of its layers
    kind = getattr(getattr(bitsandbytes, "nn", None), "Linear4bit", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work. Needed only before a clock is read."""
    if device.type in ("cuda", "mps", "xpu"):
        getattr(torch, device.type).synchronize()


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Restore the global random states of torch (CPU and `device`), Python and numpy after the block."""
    numpy = sys.modules.get("numpy")  # not imported: then nobody has drawn from it either
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    mps_state = torch.mps.get_rng_state() if device.type == "mps" else None  # fork_rng cannot do this one
    forked = device.type not in ("cpu", "meta", "mps")
    try:
        with torch.random.fork_rng(devices=[device] if forked else [], device_type=device.type if forked else "cuda"):
            yield
    finally:
        random.setstate(python_state)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def seeded_rng(device: torch.device, seed: int) -> Iterator[None]:
    """Like `preserved_rng`, and let torch draw from this seed within the block."""
    with preserved_rng(device):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU, too
        if device.type == "mps":
            torch.mps.manual_seed(seed)
        elif device.type not in ("cpu", "meta"):
            state = torch.Generator(device).manual_seed(seed).get_state()
            torch.get_device_module(device).set_rng_state(state, device)
        yield


def random_states(device: torch.device) -> list[Any]:
    """Return the global random states of torch (CPU and `device`), Python and numpy, for `set_random_states`."""
    numpy = sys.modules.get("numpy")
    has_own = device.type not in ("cpu", "meta")
    own = torch.get_device_module(device).get_rng_state(*_of_device(device)) if has_own else None
    return [torch.get_rng_state(), own, random.getstate(), numpy.random.get_state() if numpy else None]


def set_random_states(states: list[Any], device: torch.device) -> None:
    """Restore the states that `random_states` returned."""
    numpy = sys.modules.get("numpy")
    cpu, own, python, of_numpy = states
    torch.set_rng_state(cpu)
    if own is not None:
        torch.get_device_module(device).set_rng_state(own, *_of_device(device))
    random.setstate(python)
    if numpy and of_numpy is not None:
        numpy.random.set_state(of_numpy)


def _of_device(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # which takes none, as there is but one


_OF_TORCH = ("_parameters", "_buffers", "_modules")  # in every module's __dict__; the copy gets its own


def private_copy(module: nn.Module) -> nn.Module:
    """A copy of a module that can be called in any thread without an effect on the module.

    Parameters are shared. The copy has its own buffers, plain attributes (numbers, tensors, lists, dicts, sets) and
    torch.Generators, here and in submodules; other objects are shared.

    >>> module = nn.BatchNorm1d(2)
    >>> _ = private_copy(module)(torch.ones(4, 2))
    >>> int(module.num_batches_tracked)
    0
    """
    return _private_copy(unwrap(module), {})


def _private_copy(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) in known:
        return known[id(module)]
    private = known[id(module)] = copy.copy(module)
    own = vars(private)
    for name, value in own.items():
        if name not in _OF_TORCH:
            own[name] = _own_value(value)
    own["_buffers"] = {name: None if b is None else b.detach().clone() for name, b in module._buffers.items()}
    own["_modules"] = {
        name: None if part is None else _private_copy(part, known) for name, part in module._modules.items()
    }
    return private


def _own_value(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone() if not value.requires_grad else value
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return copy.copy(value) if type(value) in (list, dict, set, deque) else value


def _places_of_weights(model: nn.Module) -> dict[str, Any]:
    """Where each weight is in memory, and how often it was written."""
    return {
        name: (weight.data_ptr(), weight.shape, weight._version)
        for name, weight in model.named_parameters()
        if not isinstance(weight, nn.parameter.UninitializedParameter)
    }


def _tell_of_weights(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [name for name, place in before.items() if after.get(name) != place]
    if changed:
        _logger.warning(
            "the model's forward pass without gradients changes its weights (%s): selection passes do so too, and they "
            "are not restored. Let layers convert their weights once, before training begins",
            ", ".join(changed[:5]),
        )


class NoTrace:
    """Context in which the model can be called: no gradients, and nothing changed afterwards.

    mode "eval": every submodule is in eval mode meanwhile. Mode "train": flags stay as they are (dropout is
    drawn, BatchNorm uses the batch's statistics), but running statistics are frozen.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> with NoTrace(model, "train")():
    ...     _ = model(torch.ones(4, 2))
    >>> int(model[0].num_batches_tracked)
    0
    """

    def __init__(self, model: nn.Module, mode: ScoringMode = "eval") -> None:
        if mode not in ("eval", "train"):
            raise ValueError(f"scoring mode must be 'eval' or 'train', got {mode!r}")
        self.model = model
        self.mode = mode
        # Models write buffers in train mode. In eval mode hardly any does, and copying buffers every time has a cost,
        # so the first call finds out whether this model does.
        self._writes_buffers: bool | None = True if mode == "train" else None
        self._called = False
        # FSDP gathers parameters for a forward pass, and leaves the outermost ones gathered for the backward pass.
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        sharded = getattr(fsdp, "FSDPModule", ())
        self._sharded: list[Any] = [module for module in model.modules() if isinstance(module, sharded)]
        self._converting = _converting(model)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        # no_grad, not inference_mode: a tensor that the model caches in its forward (rotary embeddings, masks)
        # must remain usable in training.
        is_first = not self._called
        # FSDP puts the parameters that it gathers into the place of its shards.
        places = _places_of_weights(self.model) if is_first and not is_sharded(self.model) else {}
        with torch.no_grad(), preserved_rng(device_of(self.model)), self._flags(), self._buffers():
            yield
        self._called = True
        if places:
            _tell_of_weights(places, _places_of_weights(self.model))
        for module in self._sharded:
            module.reshard()

    @contextmanager
    def _flags(self) -> Iterator[None]:
        training = [m for m in self.model.modules() if m.training] if self.mode == "eval" else []
        converting = [(module, module.training) for module in self._converting]
        for module in training:
            module.training = False
        for module in self._converting:
            module.training = True
        try:
            yield
        finally:
            for module in training:
                module.training = True
            for module, flag in converting:
                module.training = flag

    @contextmanager
    def _buffers(self) -> Iterator[None]:
        if self._writes_buffers is False:
            yield
            return
        originals: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    copy = buffer.clone()
                    module._buffers[name] = copy
                    originals.append((module, name, buffer, copy))
        try:
            yield
        finally:
            if self._writes_buffers is None:  # only once per run, so waiting for the GPU does not matter
                self._writes_buffers = any(
                    module._buffers[name] is not copy or not torch.equal(buffer, copy)
                    for module, name, buffer, copy in originals
                )
            for module, name, buffer, _ in originals:
                module._buffers[name] = buffer
