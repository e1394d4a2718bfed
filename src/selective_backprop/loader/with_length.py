"""A loader that is told its length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


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
        if isinstance(num_batches, bool) or not isinstance(num_batches, int) or num_batches < 1:
            raise ValueError(f"num_batches must be a whole number of batches >= 1, got {num_batches!r}")
        try:
            length = len(loader)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            raise ValueError(f"your loader has a length, {length} batches: pass it without WithLength")
        self.loader, self.num_batches = loader, num_batches

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)
