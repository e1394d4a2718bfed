"""Describes a method's options as plain data, for messages, for saved states and to compare ranks."""

from __future__ import annotations

import dataclasses
import inspect
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_NOT_COMPARED = ("device",)  # options that do not change what a part does
_OF_OPTIMIZERS = ("lr", "momentum", "betas", "weight_decay")


class Described:
    """Base of parts of a method. It gives them a repr that shows their options."""

    def __repr__(self) -> str:
        return short(self)

    def options_in_method(self) -> list[str]:
        """List what the repr of a method shows of this part; by default all options that differ from the default."""
        return list(arguments(self))


def describe(method: object) -> dict[str, Any]:
    """Describe all options of a method and of its parts, as numbers, strings, lists and dicts.

    A description contains what constructors take, not what parts have learned. The same method has the same description
    in every process. Tensors are described by shape and checksum, models by class and number of parameters, functions
    by name.

    >>> from selective_backprop.methods import ledger_backprop
    >>> describe(ledger_backprop(max_age=5))["scorer"]
    {'class': 'TrainingLossScorer', 'max_age': 5, 'most_rise': 0.4}
    """
    described = {name: _plain(value) for name, value in _options(method)}
    return {name: described[name] for name in sorted(described)}


def differing(saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """List the options in which two descriptions differ: name, value in the first, value in the second.

    >>> differing({"name": "mine", "policy": {"beta": 1}}, {"name": "mine", "policy": {"beta": 2}})
    [('policy.beta', '1', '2')]
    """
    found = []
    for key in [*saved, *(key for key in own if key not in saved)]:
        one, other = (side.get(key, "nothing") for side in (saved, own))
        if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("class") == other.get("class"):
            found += [(f"{key}.{name}", first, second) for name, first, second in differing(one, other)]
        elif one != other:
            found.append((key, _phrase(one), _phrase(other)))
    return found


def short(part: object) -> str:
    """Show a part as the call that makes it, without options that have the default value.

    >>> from selective_backprop.policies import TopKPolicy
    >>> short(TopKPolicy(selectivity=0.5))
    'TopKPolicy(selectivity=0.5)'
    """
    return f"{type(part).__name__}({', '.join(arguments(part))})"


def arguments(part: object) -> Iterator[str]:
    """Yield the part's options that differ from the default, such as "selectivity=0.5"."""
    defaults = dict(_parameters(part))
    options = dict(_options(part))
    if "selectivity" in options:
        options.pop("beta", None)  # beta follows from selectivity
    for name, value in options.items():
        if name not in defaults or not _same(value, defaults[name]):
            yield f"{name}={_brief(value)}"


def checksum(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's values, without numpy."""
    values = tensor.detach().cpu().flatten()
    if not values.numel():
        return 0
    raw = values.view(torch.uint8)
    buffer = bytearray(raw.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(raw)
    return zlib.crc32(buffer)


def _options(part: object) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the constructor's arguments, if the part kept them as attributes."""
    for name, _ in _parameters(part):
        if name not in _NOT_COMPARED and hasattr(part, name):
            yield name, getattr(part, name)


def _parameters(part: object) -> list[tuple[str, Any]]:
    """List names and defaults of the constructor's arguments."""
    if dataclasses.is_dataclass(part):
        return [(item.name, item.default) for item in dataclasses.fields(part) if item.init]
    if type(part).__init__ is object.__init__:
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(type(part).__init__).parameters.values())[1:]
    return [(item.name, item.default) for item in parameters if item.kind in named]


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    numbers = isinstance(value, int | float) and isinstance(default, int | float)
    return (numbers or type(value) is type(default)) and not isinstance(value, Tensor) and bool(value == default)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return "nan"  # which is not equal to itself
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 are the same option
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        marked = {"true": int(value.sum())} if value.dtype == torch.bool else {}
        return {"class": "Tensor", "shape": list(value.shape), **marked, "checksum": checksum(value)}
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, "parameters": sum(p.numel() for p in value.parameters())}
    if isinstance(value, torch.optim.Optimizer):
        settings = {name: _plain(value.defaults[name]) for name in _OF_OPTIMIZERS if name in value.defaults}
        return {"class": type(value).__name__, **settings}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__.replace(".<locals>", "")
    options = value.described_by() if hasattr(value, "described_by") else dict(_options(value))
    return {"class": type(value).__name__, **{name: _plain(item) for name, item in options.items()}}


def _brief(value: Any) -> str:
    """Show a value as an argument in a repr."""
    if isinstance(value, str):
        return repr(value)
    plain = _plain(value)
    if not isinstance(plain, dict) or isinstance(value, Tensor | nn.Module | torch.optim.Optimizer):
        return _phrase(plain)
    return short(value)


def _phrase(value: Any) -> str:
    """Show a plain value in a few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_phrase, value))}]"
    if not isinstance(value, dict):
        return str(value)
    options = dict(value)
    kind = options.pop("class", "")
    if kind == "Tensor":
        kept = f"{options['true']:,} of " if "true" in options else ""
        return (
            f"<{kept}{' x '.join(f'{size:,}' for size in options['shape'])} values, checksum {options['checksum']:08x}>"
        )
    if set(options) == {"parameters"}:
        return f"<{kind} of {options['parameters']:,} parameters>"
    return f"{kind}({', '.join(f'{key}={_phrase(item)}' for key, item in options.items())})"
