"""A function that returns a random batch, such as nanoGPT's get_batch, as a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


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
        if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 1:
            raise ValueError(f"num_batches must be a whole number of batches >= 1, got {num_batches!r}")
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
