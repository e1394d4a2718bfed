"""The ids of an epoch that something else loads: which were asked for, and which came back with their losses.

# K = ids of the epoch, n = examples of a batch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from selective_backprop.ledger import occurrences
from selective_backprop.sampler.id_batches import NO_IDS

Places = Tensor | slice
"""Places of a batch's ids: a slice where the batch is the next one that was asked for."""


class AskedIds:
    """The planned ids of an epoch under way. Places count from 0 to K in the order of the plan.

    Args:
        number: number of the epoch, from 0.
        ids: (K,) the ids to load.
        weights: (K,) the weight of each id; None if all are 1.
        num_offered: number of candidates that were planned from.
    """

    def __init__(self, number: int, ids: Tensor, weights: Tensor | None, num_offered: int) -> None:
        self.number, self.ids, self.weights, self.num_offered = number, ids, weights, num_offered
        self.asked = 0
        """Number of ids asked for so far."""
        self.updated = 0
        """Every id before this place has come back."""
        self.ahead = NO_IDS
        """Places after `updated` that have come back already: batches came in another order."""
        self.num_updates = 0
        self.largest = 0
        """Number of examples of the largest batch that came back."""
        self.is_exhausted = False
        """Whether more ids were asked for than there are."""
        self.asks_ahead = False
        """Whether ids were asked for before earlier ones came back, as by a loader with workers. Not saved."""
        self._counted = self._skipped = 0  # candidates that count as offered, and those of them that are not loaded

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_updated(self) -> int:
        """Number of ids that have come back."""
        return self.updated + len(self.ahead)

    @property
    def num_open(self) -> int:
        """Number of ids that were asked for and have not come back."""
        return max(0, self.asked - self.num_updated)

    @property
    def is_over(self) -> bool:
        """Whether the epoch was gone through: all ids were asked for, and what is missing fills no batch.

        A DataLoader with drop_last asks for ids that it does not load.
        """
        return self.is_exhausted and (not self.num_updates or len(self) - self.num_updated < self.largest)

    @property
    def is_complete(self) -> bool:
        """Whether all ids were asked for and have come back; without any update, whether all were asked for."""
        return self.is_exhausted and (not self.num_updates or self.num_updated == len(self))

    def hand_out(self) -> Iterator[int]:
        """Yield the ids that were not asked for yet, one by one."""
        for piece in torch.split(self.ids[self.asked :], 4096):  # a list of all ids of an epoch may take gigabytes
            for number in piece.tolist():
                self.asked += 1
                yield number
        self.is_exhausted = True

    def next_places(self, count: int) -> Places:
        """Return the places of the next `count` ids that have not come back, in the order of asking."""
        if not len(self.ahead):
            return slice(self.updated, self.updated + count)
        return self._open_places()[:count]

    def places_of(self, ids: Tensor) -> Places:
        """Find the places of these ids among those that have not come back. Raises if one is not there."""
        places = self._open_places()
        # If an id was asked for twice, the first of both comes back first.
        keys, asked = _numbered(ids), _numbered(self.ids[places])
        in_order, order = asked.sort()
        found = torch.searchsorted(in_order, keys).clamp(max=max(0, len(in_order) - 1))
        missing = in_order[found] != keys if len(in_order) else torch.ones_like(keys, dtype=torch.bool)
        if bool(missing.any()):
            raise ValueError(
                f"the ids {ids[missing][:5].tolist()} were not asked for in this epoch, or their losses came already: "
                "pass the ids of the batch, as your data set gives them out, and each batch once"
            )
        return places[order[found]]

    def _open_places(self) -> Tensor:
        places = torch.arange(self.updated, max(self.asked, self.updated))
        return places[~torch.isin(places, self.ahead)] if len(self.ahead) else places

    def come_back(self, places: Places, count: int) -> tuple[int, int]:
        """Take note that a batch of this many ids came back.

        Returns how many more candidates count as offered, and how many of them were skipped. They count evenly over the
        epoch's ids, so that statistics make sense in mid-epoch too.
        """
        self.num_updates += 1
        self.largest = max(self.largest, count)
        self.asks_ahead |= self.num_open > count
        if isinstance(places, slice):  # those that follow on `updated`
            self.updated += count
        else:
            ahead = torch.cat([self.ahead, places]).sort().values
            # The places that follow on `updated` without a gap.
            joined = int((ahead == torch.arange(self.updated, self.updated + len(ahead))).cumprod(0).sum())
            self.updated, self.ahead = self.updated + joined, ahead[joined:]
        return self._count()

    def _count(self) -> tuple[int, int]:
        """Count candidates up to what has come back. Returns how many more are offered and skipped than before."""
        updated, before = self.num_updated, (self._counted, self._skipped)
        self._counted = round(self.num_offered * updated / max(1, len(self.ids)))
        self._skipped = max(0, self._counted - updated)
        return self._counted - before[0], self._skipped - before[1]

    def num_uncounted(self) -> tuple[int, int]:
        """Return how many candidates were not counted yet, and how many of those that are skipped."""
        return self.num_offered - self._counted, max(0, self.num_offered - len(self)) - self._skipped

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "ids": self.ids,
            "weights": self.weights,
            "num_offered": self.num_offered,
        }

    def place(self) -> dict[str, Any]:
        """Return what changes while the epoch runs."""
        return {
            "asked": self.asked,
            "updated": self.updated,
            "ahead": self.ahead,
            "updates": self.num_updates,
            "largest": self.largest,
            # With a loader that asks ahead, the last batch may be on its way.
            "over": self.is_over and not self.asks_ahead,
        }

    @staticmethod
    def from_state_dict(state: dict[str, Any], place: dict[str, Any]) -> AskedIds:
        """Go on after the ids that have come back. The others are asked for again."""
        ids, weights, ahead = state["ids"], state["weights"], place["ahead"]
        if len(ahead):
            order = torch.arange(len(ids))
            later = order[place["updated"] :]
            order = torch.cat([order[: place["updated"]], ahead, later[~torch.isin(later, ahead)]])
            ids, weights = ids[order], None if weights is None else weights[order]
        epoch = AskedIds(state["number"], ids, weights, state["num_offered"])
        epoch._go_on(place)
        return epoch

    def _go_on(self, place: dict[str, Any]) -> None:
        self.num_updates, self.largest = place["updates"], place["largest"]
        # Without any update, nothing says what was trained on, except what was asked for.
        self.go_to(place["updated"] + len(place["ahead"]) if place["updates"] else place["asked"])
        self.is_exhausted |= place["over"]

    def go_to(self, place: int) -> None:
        """Ask for the ids from this place on. Those before it do not come back any more."""
        self.asked, self.updated, self.ahead = place, max(self.num_updated, place), NO_IDS
        self.is_exhausted = place >= len(self)
        self._count()


def _numbered(ids: Tensor) -> Tensor:
    """Turn ids into keys that are all different: the id, and how often it occurred before."""
    return ids * (2**20) + occurrences(ids)
