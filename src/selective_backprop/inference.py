"""Run a model without leaving a trace on it or on any global random state."""

from __future__ import annotations

import copy
import itertools
import logging
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

ScoringMode = Literal["eval", "train"]
_logger = logging.getLogger(__name__)

_LARGE = 2**20  # bytes of a buffer; those of BatchNorm have a few kilobytes


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


def as_device(device: torch.device | str | int) -> torch.device:
    """Return the device that the user named.

    >>> as_device("gpu")
    Traceback (most recent call last):
    ...
    ValueError: device must be one that torch knows, such as 'cuda', 'cuda:1', 'mps' or 'cpu', got 'gpu'
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"device must be one that torch knows, such as 'cuda', 'cuda:1', 'mps' or 'cpu', got {device!r}"
        ) from None


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


class Call(NamedTuple):
    """A call of a layer in a forward pass."""

    name: str
    inputs: Any
    """The first argument."""
    outputs: Any


@contextmanager
def calls_of(layers: Mapping[str, nn.Module]) -> Iterator[list[Call]]:
    """Note every call of these layers within the block, in their order. layers: by name.

    >>> layer = nn.Linear(3, 2)
    >>> with calls_of({"last": layer}) as calls:
    ...     _ = layer(torch.ones(4, 3))
    >>> [(call.name, tuple(call.inputs.shape), tuple(call.outputs.shape)) for call in calls]
    [('last', (4, 3), (4, 2))]
    """
    calls: list[Call] = []

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        calls.append(Call(name, next(iter((*args, *kwargs.values())), None), outputs))

    hooks = [
        layer.register_forward_hook(lambda _, *call, name=name: note(name, *call), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work. Needed only before a clock is read."""
    if device.type in ("cuda", "mps", "xpu"):
        getattr(torch, device.type).synchronize()


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Restore the global random states of torch (CPU and `device`), Python and numpy after the block."""
    states = random_states(device)
    try:
        yield
    finally:
        set_random_states(states, device)


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
        # Copying buffers that hold the weights of a quantised model would double its memory. So in eval mode, in which
        # hardly any model writes buffers, the first pass finds out whether this model writes large ones.
        self._copies_large = True
        self._called = False
        # FSDP gathers parameters for a forward pass, and leaves the outermost ones gathered for the backward pass.
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        sharded = getattr(fsdp, "FSDPModule", ())
        self._sharded: list[Any] = [module for module in model.modules() if isinstance(module, sharded)]
        self._converting = _converting(model)
        attributes = itertools.chain.from_iterable(vars(module).values() for module in model.modules())
        self._generators = [value for value in attributes if isinstance(value, torch.Generator)]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        model, is_first = self.model, not self._called
        device = device_of(model)
        states, own_states = random_states(device), [generator.get_state() for generator in self._generators]
        # FSDP puts the parameters that it gathers into the place of its shards.
        places = _places_of_weights(model) if is_first and not is_sharded(model) else {}
        flags = [(module, module.training) for module in model.modules()]
        buffers: list[tuple[nn.Module, str, Tensor, Tensor, int]] = []
        # no_grad, not inference_mode: a tensor that the model caches in its forward (rotary embeddings, masks) must
        # remain usable in training.
        with torch.no_grad():
            try:
                for module, is_training in flags:
                    if is_training and self.mode == "eval":
                        module.training = False
                    # The model writes to copies of its buffers. A copy of a few kilobytes costs less than to find out.
                    for name, buffer in module._buffers.items():
                        if buffer is not None:
                            is_copied = self._copies_large or not _is_large(buffer)
                            module._buffers[name] = used = buffer.clone() if is_copied else buffer
                            buffers.append((module, name, buffer, used, 0 if is_copied else version_of(buffer)))
                for module in self._converting:
                    module.training = True
                yield
            finally:
                if is_first and self.mode == "eval":  # only once per run, so waiting for the GPU does not matter
                    self._copies_large = any(
                        module._buffers[name] is not used or not torch.equal(buffer, used)
                        for module, name, buffer, used, _ in buffers
                        if _is_large(buffer)
                    )
                for module, name, buffer, used, version in buffers:
                    module._buffers[name] = buffer
                    if used is buffer and version_of(buffer) != version:
                        self._copies_large = True  # from now on
                        _tell_of_buffer(module, name)
                for module, is_training in flags:
                    if module.training != is_training:
                        module.training = is_training
                set_random_states(states, device)
                for generator, state in zip(self._generators, own_states, strict=True):
                    generator.set_state(state)
        self._called = True
        if places:
            _tell_of_weights(places, _places_of_weights(model))
        for module in self._sharded:
            module.reshard()


def version_of(buffer: Tensor) -> int:
    """How often a tensor was written to. One that was made in inference mode does not tell."""
    return 0 if buffer.is_inference() else buffer._version


def _tell_of_buffer(module: nn.Module, name: str) -> None:
    _logger.warning(
        "the buffer %s of %s, of more than 1 MB, was changed by a selection pass, because the model's first pass in "
        "eval mode did not write to it. From now on it is restored after every pass",
        name,
        type(module).__name__,
    )


def _is_large(buffer: Tensor) -> bool:
    """Whether a buffer has more bytes than a copy may have in every pass. Sparse ones count as small."""
    return buffer.layout is torch.strided and buffer.numel() * buffer.element_size() > _LARGE
