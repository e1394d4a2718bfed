"""Undoing changes: if a block of code raises halfway, objects get their old state back."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def unchanged_on_error(
    *objects: object, generators: Iterable[torch.Generator] = (), stateful: Iterable[Any] = ()
) -> Iterator[None]:
    """If loading a state raises in the block, restore attributes of objects and states of generators and others.

    What a damaged state makes code stumble over, such as a KeyError, becomes a ValueError that says so.

    Attributes that were replaced are restored, and lists, dicts, sets and deques that were changed in place. Tensors
    that were written to in place are not.

    >>> class Counter:
    ...     count = 0
    >>> counter = Counter()
    >>> try:
    ...     with unchanged_on_error(counter):
    ...         counter.count = 1
    ...         raise ValueError
    ... except ValueError:
    ...     counter.count
    0
    """
    attributes = [(thing, {name: _copied(value) for name, value in vars(thing).items()}) for thing in objects]
    drawn = [(generator, generator.get_state()) for generator in generators]
    states = [(thing, copy.deepcopy(thing.state_dict())) for thing in stateful]
    try:
        yield
    except BaseException as error:
        for thing, before in attributes:
            vars(thing).clear()
            vars(thing).update(before)
        for generator, state in drawn:
            generator.set_state(state)
        for thing, state in states:
            thing.load_state_dict(state)
        # Damage has no shape of its own.
        if isinstance(error, (LookupError, TypeError, AttributeError, RuntimeError, AssertionError)):
            raise ValueError(
                f"this state cannot be loaded, and nothing was changed ({type(error).__name__}: {error}): it is "
                "damaged, or was edited"
            ) from error
        raise


def _copied(value: Any) -> Any:
    return copy.copy(value) if type(value) in (list, dict, set, deque) else value
