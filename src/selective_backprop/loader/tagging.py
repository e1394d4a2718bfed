"""Which chunk a batch was loaded for, where a DataLoader subclass does as it likes with its batches.

torch's own DataLoader returns batches in the order in which it asked for indices. A subclass with an `__iter__` of its
own may read ahead, drop, reorder or change them. So the tensors that it gets from torch carry their chunk, whatever is
computed from them inherits it, and what the subclass returns is known by it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from selective_backprop.batches.layout import map_tensors

TORCH = ("torch", "torchdata")
"""Packages whose loaders keep the order of indices."""


class TaggedTensor(Tensor):
    """A tensor that knows what it was made from: one tag, or several that were mixed."""

    tags: tuple[Any, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        tags: dict[int, Any] = {}
        _collect([args, list((kwargs or {}).values())], tags)
        for made in result if isinstance(result, list | tuple) else (result,):
            if isinstance(made, TaggedTensor) and not hasattr(made, "tags"):
                made.tags = tuple(tags.values())
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> TaggedTensor:
        return _tagged(copy.deepcopy(self.as_subclass(Tensor), memo), self.tags)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Saved or sent elsewhere, it is a tensor as any other.
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _collect(value: Any, tags: dict[int, Any]) -> None:
    if isinstance(value, TaggedTensor):
        tags |= {id(tag): tag for tag in getattr(value, "tags", ())}
    elif isinstance(value, list | tuple):
        for part in value:
            _collect(part, tags)


def _tagged(tensor: Tensor, tags: tuple[Any, ...]) -> TaggedTensor:
    made: TaggedTensor = tensor.as_subclass(TaggedTensor)
    made.tags = tags
    return made


class TaggedIterator:
    """What torch's iterator yields, each batch tagged with the next of what was asked for.

    Args:
        iterator: of torch, in the order of asking.
        asked: what for; it grows as the iterator asks.
    """

    def __init__(self, iterator: Any, asked: deque[Any]) -> None:
        self._iterator = iterator
        self._asked = asked

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        tags = (self._asked.popleft(),)
        # A tensor of a class of its own keeps it: its tag would be lost with the first operation on it.
        return map_tensors(batch, lambda tensor: _tagged(tensor, tags) if type(tensor) is Tensor else tensor)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


def untag(batch: Any) -> tuple[Any, list[Any]]:
    """The batch without tags, and the tags of all its tensors, each once."""
    tags: dict[int, Any] = {}

    def plain(tensor: Tensor) -> Tensor:
        _collect(tensor, tags)
        return tensor.as_subclass(Tensor) if type(tensor) is TaggedTensor else tensor

    return map_tensors(batch, plain), list(tags.values())


def overrides(cls: type, name: str) -> bool:
    """Whether a subclass of DataLoader has a method of its own in place of torch's."""
    return _package(getattr(cls, name, None)) not in TORCH


def with_tags(cls: type) -> type:
    """The same class, whose `super().__iter__()` tags the batches of torch's iterator.

    The batch sampler of its objects says by `asked` what the newest iterator asked for.
    """
    base = next(parent for parent in cls.__mro__ if _package(vars(parent).get("__iter__")) in TORCH)

    def iterate(self: Any) -> TaggedIterator:
        iterator = base.__iter__(self)  # type: ignore[attr-defined]
        return TaggedIterator(iterator, self.batch_sampler.asked)

    # Between the user's class and torch's in the order in which methods are looked up.
    tagging = type(base.__name__, (base,), {"__iter__": iterate})
    return type(cls.__name__, (cls, tagging), {"__module__": cls.__module__})


def _package(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
