"""Loaders that are told the length of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from selective_backprop.chain.user_loader import length_of


class WithLength:
    """Gives a loader without a length the number of batches of an epoch. `len` and `progress` of a loader need it.

    If the number is not quite right, `progress` still ends at 1, and the log says how many batches there were.

    Args:
        loader: a loader without a length, such as a DataLoader over a stream.
        num_batches: batches per epoch.

    >>> len(WithLength(iter([1, 2, 3]), num_batches=3))
    3
    """

    def __init__(self, loader: Iterable[Any], num_batches: int) -> None:
        _require_batches(num_batches)
        if (length := length_of(loader)) is not None:
            raise ValueError(f"your loader has a length, {length} batches: pass it without WithLength")
        self.loader, self.num_batches = loader, num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class BatchFunction:
    """A loader whose batches are the results of a function. An epoch is a number of calls.

    Its place can be saved and restored without calling the function again for the batches that are gone. The function
    goes on drawing from where its random state is, so save that too: pass its generator here, or save torch's global
    state, as for any exact resume.

    Args:
        function: returns the next batch. It takes no arguments: use a lambda, such as `lambda: get_batch("train")`.
        num_batches: calls per epoch. For one long epoch, this is the length of the run.
        generator: the generator that the function draws from, if it has its own.

    >>> batches = BatchFunction(lambda: torch.ones(2), num_batches=3)
    >>> len(batches), len(list(batches))
    (3, 3)
    """

    def __init__(
        self, function: Callable[[], Any], num_batches: int, *, generator: torch.Generator | None = None
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable without arguments, got {type(function).__name__}")
        _require_batches(num_batches)
        self.function, self.num_batches, self.generator = function, num_batches, generator
        self._position = self._start = 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        self._position, self._start = self._start, 0
        while self._position < self.num_batches:
            self._position += 1
            yield self.function()

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch. SelectiveLoader saves it, and the generator's state beside it."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next iteration at this place."""
        self._start = self._position = state["position"]


def _require_batches(num_batches: Any) -> None:
    if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 1:
        raise ValueError(f"num_batches must be a whole number of batches >= 1, got {num_batches!r}")
