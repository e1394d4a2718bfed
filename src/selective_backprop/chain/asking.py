"""Asking: how a sampler's ids are handed out. A loader may ask for them ahead of training.

# K = ids of the epoch on this rank
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

_PIECE = 4096  # ids that become a list at once: a list of all ids of an epoch may take gigabytes


class HandedOut:
    """The ids of an epoch, and how many of them were asked for.

    Args:
        number: number of the epoch, from 0.
        ids: (K,) in order.
    """

    def __init__(self, number: int, ids: Tensor) -> None:
        self.number, self.ids = number, ids
        self.exhausted = False
        """Whether more ids were asked for than there are."""
        self._first = 0  # where an iteration begins
        self._end = 0  # number of ids in the lists that were begun
        self._numbers: list[int] = []
        self._piece: Iterator[int] = iter(())
        self._turn = 0  # number of iterations begun or left

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def asked(self) -> int:
        """Number of ids that were asked for."""
        return self._end - operator.length_hint(self._piece)

    def begin_at(self, first: int) -> None:
        """Let iterations begin at this row."""
        self._first = first
        self.go_to(first)

    def go_to(self, row: int | None = None) -> None:
        """Hand out the ids from this row on; by default from the first that an iteration hands out."""
        self._end, self._piece, self.exhausted = self._first if row is None else row, iter(()), False

    def hand_out(self) -> Iterator[Iterator[int]]:
        """Yield the ids that were not asked for yet, some thousands at a time."""
        self._turn += 1
        turn = self._turn
        for piece in torch.split(self.ids[self.asked :], _PIECE):
            self._numbers = piece.tolist()
            self._piece, self._end = iter(self._numbers), self._end + len(piece)
            yield self._piece
            if self._turn != turn:
                raise RuntimeError(
                    "another iteration over this sampler has begun, or a state was loaded: an iteration that was left "
                    "cannot go on. For two loops at once, make two samplers"
                )
        self.exhausted = True

    def leave(self) -> None:
        """End the iteration: another one begins."""
        self._end, self._piece = self.asked, iter(())
        self._numbers.clear()
        self._turn += 1


class Epochs(Protocol):
    """The epochs of a sampler, as an iteration over them needs them."""

    def begin(self, asked: int | None) -> HandedOut:
        """Begin an epoch, at a row if one is given."""

    def place_of_next(self, epoch: HandedOut | None) -> dict[str, int]:
        """Return where an iteration over this epoch is; None if it has not begun."""

    def can_go_on(self, place: dict[str, int]) -> bool:
        """Whether an iteration can go on from this place, because it is in the epoch that was loaded."""


class Asking(itertools.chain[int]):
    """An iterator over the ids of one epoch, for any DataLoader.

    Ids come out of lists of thousands, so asking for one calls no function of Python. A StatefulDataLoader with
    workers asks ahead of training, and saves for each batch where it was.
    """

    _epochs: Epochs
    _start: dict[str, Any]

    @classmethod
    def over(cls, epochs: Epochs) -> Asking:
        """Make an iteration. All happens with the first id: a DataLoader draws a seed for its workers before that."""
        start: dict[str, Any] = {"epoch": None, "place": None}

        def pieces() -> Iterator[Iterator[int]]:
            place = start["place"]
            start["epoch"] = epochs.begin(None if place is None else place["asked"])
            yield from start["epoch"].hand_out()

        asking = cls.from_iterable(pieces())
        assert isinstance(asking, cls)
        asking._epochs, asking._start = epochs, start
        return asking

    def state_dict(self) -> dict[str, int]:
        if self._start["epoch"] is None and self._start["place"] is not None:
            return self._start["place"]  # type: ignore[no-any-return]
        return self._epochs.place_of_next(self._start["epoch"])

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._start["place"] = state if self._epochs.can_go_on(state) else None
