"""The parts of a checkpoint: the ledger, models, optimizers, and anything else with a state_dict.

A part's state is cut in two. Parameters, and what an optimizer keeps for each of them, are the same on all ranks or
spread over them (DTensor): torch.distributed.checkpoint writes them once and deals them out again to any number of
ranks. The rest, such as BatchNorm's statistics or a step count, each rank writes for itself. The ledger's columns are
tensors of the first kind, whichever ranks hold which rows.

# M = data set
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from selective_backprop.distributed.ledger import AnyLedger, Write
from selective_backprop.distributed.ranks import Ranks
from selective_backprop.files import states
from selective_backprop.ledger import Ledger

Description = dict[str, Any]
"""The metadata of each tensor in a checkpoint, by name, from torch.distributed.checkpoint."""


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


def room_for(name: str, part: Any, own: Any, saved: Description) -> dict[str, Tensor]:
    """Return the tensors to read a checkpoint into, by name. Raises ValueError if they do not fit this part."""
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
        if tensor.shape != saved[key].size:
            raise ValueError(f"{key} is {tuple(saved[key].size)} in the checkpoint and {tuple(tensor.shape)} here")
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
        part.load_state_dict({"state": state, "param_groups": own["param_groups"]})
    else:
        part.load_state_dict(own)


def current_state(part: Any) -> Any:
    """Return a state by which `part.load_state_dict` undoes what it loads next."""
    state = part.state_dict()
    # An optimizer replaces its tensors when it loads a state, so that the old ones stay as they are.
    return state if isinstance(part, torch.optim.Optimizer) else copy.deepcopy(state)


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
                shared[f"{number}/{key}"] = value.detach()
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
    name: str, optimizer: torch.optim.Optimizer, own: dict[str, Any], saved: Description
) -> dict[str, Tensor]:
    parameters = _parameters(optimizer)
    sizes = [[len(group["params"]) for group in groups] for groups in (own["param_groups"], optimizer.param_groups)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{name} has groups of {sizes[1]} parameters, the checkpoint of {sizes[0]}")
    return {
        f"{number}/{key}": torch.empty_like(
            parameters[number].detach(), dtype=saved[f"{name}/{number}/{key}"].properties.dtype
        )
        for number, key in own["shared"]
    }


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# ---- the ledger


def whole_columns(state: dict[str, Any], ranks: Ranks, num_examples: int, *, empty: bool = False) -> dict[str, Tensor]:
    """Return the columns of a ledger's state by name. If ranks share the ledger, this rank has only its own rows.

    empty: return new columns of the same kind instead, to read a checkpoint into.
    """
    if not num_examples:
        return {}
    # A column of width 0 has nothing to save.
    columns = {
        f"ledger/{name}": torch.empty_like(column) if empty else column
        for name, column in state.get("block", state).items()
        if 0 not in column.shape[1:]
    }
    if ranks.size == 1:
        return columns
    mesh = DeviceMesh.from_group(ranks.group, "cpu")
    result: dict[str, Tensor] = {}
    for name, column in columns.items():
        whole = torch.empty(num_examples, *column.shape[1:], device="meta")
        result[name] = DTensor.from_local(
            column, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
    return result


def ledger_state(ledger: AnyLedger, columns: dict[str, Tensor], writes: list[Any]) -> dict[str, Any]:
    """Return the state of this ledger with its columns and writes replaced by saved ones. It is not changed."""
    here: dict[str, Any] = ledger.state_dict(copy=False)
    if not columns:
        return here
    local = {
        name.removeprefix("ledger/"): column.to_local() if isinstance(column, DTensor) else column
        for name, column in columns.items()
    }
    if "block" in here:
        return here | {"block": here["block"] | local, "writes": writes}
    if not writes:
        return here | local
    loaded = Ledger(len(ledger), ledger.columns)
    loaded.load_state_dict(here | local)
    for write in writes:
        Write(*write).apply(loaded)
    return loaded.state_dict()


# ---- helpers


def _require_plain(name: str, own: Any) -> None:
    """Raise if a state could not be read without running code: now, and not when it is needed."""
    try:
        states.unpack(states.pack(own))
    except Exception as error:  # of many kinds where it cannot even be packed
        raise TypeError(f"the state_dict of {name} has more in it than plain data and tensors: {error}") from error


def _some(keys: set[str]) -> str:
    shown = sorted(keys)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "") if shown else "nothing"
