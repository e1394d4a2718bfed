"""Tagging: finds out which chunk a batch belongs to if a subclass of DataLoader has its own `__iter__`.

torch's own DataLoader returns batches in the order in which it asked for indices. A subclass may read ahead, drop,
reorder or change them. So the tensors that it gets from torch are tagged with their chunk. Whatever is computed from a
tagged tensor inherits its tag, and the tags of what the subclass returns tell the chunk.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from selective_backprop.batches.layout import map_tensors

TORCH = ("torch", "torchdata")
"""Packages whose loaders return batches in the order of indices."""


class TaggedTensor(Tensor):
    """A tensor that carries tags."""

    tags: tuple[Any, ...]
    """The tags of all tensors from which this one was computed."""

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
        # When it is saved or sent to another process, it becomes a normal tensor.
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
    """Yields the batches of torch's iterator, each tagged with the chunk that it was loaded for.

    Args:
        iterator: torch's iterator, which returns batches in the order of asking.
        asked: the chunks that it asked for. The list grows as the iterator asks.
    """

    def __init__(self, iterator: Any, asked: deque[Any]) -> None:
        self._iterator = iterator
        self._asked = asked

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        tags = (self._asked.popleft(),)
        # Only plain tensors are tagged. A tensor of another subclass would lose its tag with the first operation.
        return map_tensors(batch, lambda tensor: _tagged(tensor, tags) if type(tensor) is Tensor else tensor)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


def untag(batch: Any) -> tuple[Any, list[Any]]:
    """Return the batch without tags, and the tags of all its tensors, each once."""
    tags: dict[int, Any] = {}

    def plain(tensor: Tensor) -> Tensor:
        _collect(tensor, tags)
        return tensor.as_subclass(Tensor) if type(tensor) is TaggedTensor else tensor

    return map_tensors(batch, plain), list(tags.values())


def overrides(cls: type, name: str) -> bool:
    """Whether a subclass of DataLoader overrides this method of torch's."""
    return _package(getattr(cls, name, None)) not in TORCH


def with_tags(cls: type) -> type:
    """Make a subclass of `cls` in which `super().__iter__()` yields tagged batches.

    The batch sampler of its objects must be an IndexStream: its `asked` lists the chunks that are under way.
    """
    base = next(parent for parent in cls.__mro__ if _package(vars(parent).get("__iter__")) in TORCH)

    def iterate(self: Any) -> TaggedIterator:
        iterator = base.__iter__(self)  # type: ignore[attr-defined]
        return TaggedIterator(iterator, self.batch_sampler.asked)

    # In the order in which Python looks up methods, this class comes between the user's class and torch's.
    tagging = type(base.__name__, (base,), {"__iter__": iterate})
    return type(cls.__name__, (cls, tagging), {"__module__": cls.__module__})


def _package(function: Any) -> str:
    return (getattr(function, "__module__", None) or "").partition(".")[0]
