"""The parts of a checkpoint: models, optimizers, and anything else with a state_dict.

A part's state is cut in two. Parameters, and what an optimizer keeps for each of them, are the same on all ranks or
spread over them (DTensor). They are written as chunks, each with its place in the whole tensor, so that any number of
ranks can read what it needs. The rest, such as BatchNorm's statistics or a step count, each rank writes for itself.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from selective_backprop.files.reading import visible
from selective_backprop.files.sealed import seal, unseal

Chunk = dict[str, Any]
"""A part of a tensor: the `shape` of the whole, the `offset` of the part in it, and its `values`."""


def split_state(name: str, part: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a part's state into tensors that all ranks write together, by name, and the rest, written by each rank."""
    if isinstance(part, nn.Module):
        shared, own = _pack_module(part)
    elif isinstance(part, torch.optim.Optimizer):
        shared, own = _pack_optimizer(name, part)
    elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        shared, own = {}, part.state_dict()
    else:
        raise TypeError(
            f"{name} must have state_dict and load_state_dict to be saved in a checkpoint, got {type(part).__name__}"
        )
    _require_plain(name, own)
    return {f"{name}/{key}": tensor for key, tensor in shared.items()}, own


def room_for(name: str, part: Any, own: Any, saved: dict[str, list[Chunk]]) -> dict[str, Tensor]:
    """Return the tensors to read a checkpoint into, by name. Raises ValueError if they do not fit this part.

    saved: the chunks of each tensor in the checkpoint.
    """
    if isinstance(part, nn.Module):
        shared = _pack_module(part)[0]
    elif isinstance(part, torch.optim.Optimizer):
        shared = _room_of_optimizer(name, part, own, saved)
    else:
        return {}
    room = {f"{name}/{key}": tensor for key, tensor in shared.items()}
    there = {key for key in saved if key.startswith(f"{name}/")}
    if room.keys() != there:
        raise ValueError(
            f"{name} does not fit the checkpoint: {_some(there - room.keys())} only there, "
            f"{_some(room.keys() - there)} only here"
        )
    for key, tensor in room.items():
        if [*tensor.shape] != (shape := saved[key][0]["shape"]):
            raise ValueError(f"{key} is {tuple(shape)} in the checkpoint and {tuple(tensor.shape)} here")
        fill(key, tensor, saved[key], dry=True)
    return room


def load_part(name: str, part: Any, tensors: dict[str, Tensor], own: Any) -> None:
    """Load what was read from a checkpoint into the part."""
    shared = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
    if isinstance(part, nn.Module):
        set_model_state_dict(part, {**shared, **own})
    elif isinstance(part, torch.optim.Optimizer):
        state = {number: dict(values) for number, values in own["state"].items()}
        for number, key in own["shared"]:
            state[number][key] = shared[f"{number}/{key}"]
        before = [set(group) for group in part.param_groups]
        part.load_state_dict({"state": state, "param_groups": own["param_groups"]})
        # torch adds what a later version of the same optimizer knows, so what is missing now is of another one.
        if missing := [name for had, group in zip(before, part.param_groups, strict=True) for name in had - set(group)]:
            raise ValueError(
                f"{name} was saved by another optimizer than this {type(part).__name__}: its groups of parameters lack "
                f"{', '.join(sorted(set(missing)))}"
            )
        require_room(name, part)
    else:
        part.load_state_dict(own)


def require_room(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError if fused steps of an optimizer, whose state was loaded, would write beyond its tensors.

    torch's fused steps take for granted that what is kept for a parameter has its shape. Others look at the shapes.
    """
    for parameter in (one for group in optimizer.param_groups if group.get("fused") for one in group["params"]):
        for key, value in optimizer.state.get(parameter, {}).items():
            shape = torch.Size() if key == "step" else parameter.shape
            if isinstance(value, Tensor) and value.shape != shape:
                raise ValueError(
                    f"{name} has {key!r} of shape {tuple(value.shape)} for a parameter of shape "
                    f"{tuple(parameter.shape)}: it is damaged, or of another optimizer"
                )


def way_back(part: Any) -> Callable[[], Any]:
    """Return a function that undoes what the part loads next. Parameters of a model stay as they are until the end."""
    if isinstance(part, nn.Module):
        shared, own = _pack_module(part)
        return partial(set_model_state_dict, part, {**shared, **copy.deepcopy(own)})
    state = part.state_dict()
    # An optimizer replaces its tensors when it loads a state, so that the old ones stay as they are.
    return partial(part.load_state_dict, state if isinstance(part, torch.optim.Optimizer) else copy.deepcopy(state))


# ---- tensors


def chunk_of(tensor: Tensor) -> Chunk:
    """Describe the part of a tensor that this rank has."""
    offset, values = _place(tensor)
    return {"shape": [*tensor.shape], "offset": offset, "values": values}


def fill(name: str, tensor: Tensor, chunks: list[Chunk], *, dry: bool = False) -> None:
    """Copy from chunks what belongs to this rank's part of the tensor. Raises ValueError if some of it is missing.

    dry: only find out whether all of it is there.
    """
    begin, target = _place(tensor)
    found = 0
    for chunk in chunks:
        offset, values = chunk["offset"], chunk["values"]
        places = [_overlap(*one) for one in zip(begin, target.shape, offset, values.shape, strict=True)]
        part = values[tuple(there for _, there in places)]
        found += part.numel()
        if not dry:
            target[tuple(here for here, _ in places)].copy_(part)
    if found < target.numel():  # there is more if several ranks had the same part
        raise ValueError(f"the checkpoint has {found} of the {target.numel()} numbers of {name}")


def _overlap(begin: int, size: int, offset: int, length: int) -> tuple[slice, slice]:
    """Find which of the places begin ... begin + size are in offset ... offset + length; counted from both.

    >>> _overlap(10, 5, 12, 8)
    (slice(2, 5, None), slice(0, 3, None))
    """
    low = max(begin, offset)
    high = max(low, min(begin + size, offset + length))
    return slice(low - begin, high - begin), slice(low - offset, high - offset)


def _place(tensor: Tensor) -> tuple[list[int], Tensor]:
    """Return where this rank's part of a tensor begins, and the part."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return [0] * tensor.dim(), tensor
    # What torch.distributed.checkpoint asks of every kind of tensor that is spread over ranks.
    chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return [*chunks[0].offsets] if chunks else [0] * tensor.dim(), tensor.to_local()


# ---- models


def _pack_module(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not imported: then it is not in use
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise TypeError("FullyShardedDataParallel is not supported: shard the model by fully_shard")
    state = get_model_state_dict(model)
    # By where they are in memory, as wrappers (DDP, torch.compile) change their names.
    parameters = {parameter.data_ptr() for parameter in model.parameters() if not isinstance(parameter, DTensor)}
    shared, own = {}, {}
    for key, value in state.items():
        if isinstance(value, DTensor) or (isinstance(value, Tensor) and value.data_ptr() in parameters):
            shared[key] = value
        else:
            own[key] = value
    return shared, own


# ---- optimizers


def _pack_optimizer(name: str, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    state, parameters = optimizer.state_dict(), _parameters(optimizer)
    shared: dict[str, Tensor] = {}
    own: dict[str, Any] = {"state": {}, "param_groups": state["param_groups"], "shared": []}
    for number, values in state["state"].items():
        own["state"][number] = {}
        for key, value in values.items():
            # Not torch's get_optimizer_state_dict: for an optimizer that made no step it makes one, which counts.
            if isinstance(value, Tensor) and value.shape == parameters[number].shape and value.dim():
                shared[f"{number}/{key}"] = value
                own["shared"].append([number, key])
            elif isinstance(value, DTensor):
                raise TypeError(
                    f"{name} keeps {key!r} of shape {tuple(value.shape)} spread over ranks for a parameter of shape "
                    f"{tuple(parameters[number].shape)}: only what has the parameter's shape can be dealt out again"
                )
            else:
                own["state"][number][key] = value
    return shared, own


def _room_of_optimizer(
    name: str, optimizer: torch.optim.Optimizer, own: dict[str, Any], saved: dict[str, list[Chunk]]
) -> dict[str, Tensor]:
    parameters = _parameters(optimizer)
    sizes = [[len(group["params"]) for group in groups] for groups in (own["param_groups"], optimizer.param_groups)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{name} has groups of {sizes[1]} parameters, the checkpoint of {sizes[0]}")
    return {
        f"{number}/{key}": torch.empty_like(
            parameters[number].detach(), dtype=saved[f"{name}/{number}/{key}"][0]["values"].dtype
        )
        for number, key in own["shared"]
    }


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# ---- helpers


def _require_plain(name: str, own: Any) -> None:
    """Raise if a state could not be read without running code: now, and not when it is needed."""
    try:
        unseal(seal({"state": own}))
    except Exception as error:  # of many kinds where it cannot even be packed
        raise TypeError(f"the state_dict of {name} has more in it than plain data and tensors: {error}") from error


def _some(keys: set[str]) -> str:
    shown = [visible(key) for key in sorted(keys)]  # a stranger's names may hold what a terminal obeys
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "") if shown else "nothing"
