"""The losses of a sampler's epoch, held until its end: they are written only if they fit the ids that were handed out.

# K = ids of the epoch on this rank, n = examples of a batch
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selective_backprop.chain.asking import HandedOut
from selective_backprop.chain.id_batches import IdBatch, evened
from selective_backprop.copying import Copy, finish_copy
from selective_backprop.losses import as_ids
from selective_backprop.step_losses import NO_IDS, StepLosses

Rows = Tensor | slice
"""Rows of the plan: a slice where a batch is the next one in the order of asking."""
Ahead = list[int]
"""Examples of a batch, and the ids that were asked for beyond it when its losses came."""
_SAVED = ("back", "came", "updates", "usual", "last", "by_ids", "is_even", "has_gap", "finished", "counted", "skipped")


class HeldLosses(HandedOut):
    """An epoch of a sampler: its plan, which ids were asked for, and which came back with their losses.

    Args:
        number: number of the epoch, from 0.
        plans: what each rank is to load, equally many ids.
        rank: number of this rank.
        offered: candidates of all ranks that were planned from.
    """

    def __init__(self, number: int, plans: list[IdBatch], rank: int, offered: int) -> None:
        super().__init__(number, plans[rank].ids)
        self.plans, self.rank, self.offered, self.weights = plans, rank, offered, plans[rank].weights
        self.back = 0
        """Number of ids that came back: all before this row, unless `came` says which."""
        self.came: Tensor | None = None
        """(K,) bool: which ids came back, if they travel with the batches."""
        self.by_ids: bool | None = None
        """Whether ids travel with the batches; else batches are told apart by their order."""
        self.updates = 0
        """Number of batches that came back."""
        self.usual = 0
        """Examples of the largest batch that came back."""
        self.last = 0
        """Examples of the last batch that came back."""
        self.is_even = True
        """Whether all batches that came back had the same size, apart from the last."""
        self.finished = False
        """Whether the epoch is over, and its losses were written."""
        self.was_over = False
        """Whether the epoch was over when its state was saved."""
        self.counted = self.skipped = 0
        """Candidates that count as offered so far, and those that count as skipped."""
        self.ahead: Ahead | None = None
        """How far the loader asks ahead, by the first losses of this iteration."""
        self.ahead_before: Ahead | None = None
        """The same in the process that saved the epoch."""
        self.has_gap = False
        """Whether more was asked for later: a batch in between did not come back."""
        self._losses: list[list[Tensor]] = []  # ids and losses of each step: one list, which states share
        self._arriving: list[tuple[list[Tensor], Copy]] = []  # those of them that are on their way from a GPU
        self._rows_by_id: tuple[Tensor, Tensor] | None = None
        self._has_repeats = self._is_limited = False

    @property
    def missing(self) -> int:
        """Number of ids that were asked for and did not come back."""
        return max(0, self.asked - self.back)

    def is_over(self, drop_last: bool | None, learns_losses: bool, *, is_told: bool = False) -> bool:
        """Whether all losses have come back, apart from what a DataLoader with drop_last drops.

        Args:
            drop_last: None if it is not known. Then a rest that was asked for and fills no batch counts as dropped, if
                the loader does not ask ahead: else the last batch may be on its way.
            learns_losses: whether the method needs losses.
            is_told: whether the user said so, and not an earlier epoch.
        """
        if self.finished or self.was_over or self.back == len(self):
            return True
        if not self.updates:
            return self.exhausted and not learns_losses
        if self.by_ids:
            assert self.came is not None
            return self.exhausted and bool(self.came[-self.usual * (1 + bool(drop_last)) :].any())
        is_rest = self.is_even and len(self) - self.back < self.usual
        if is_told or not is_rest:
            return is_rest and bool(drop_last)
        return self.exhausted and (self.ahead is not None and not self.ahead[1] if drop_last is None else drop_last)

    # ---- batches that come back

    def rows(self, count: int | None, ids: Any, batch_size: int | None) -> tuple[Rows, int]:
        """Find the rows of a batch, and count them.

        Args:
            count: number of examples of the batch; None if the caller does not know it.
            ids: the user's ids, if they travel with the batch.
            batch_size: examples of every batch but the last; None if the user did not say.
        """
        if self.by_ids is not None and self.by_ids != (ids is not None):
            raise ValueError("some updates of this epoch had ids, and some not: pass them in every step or in none")
        if ids is not None:
            given = as_ids(ids, "ids").flatten()
            if count not in (None, len(given)):
                raise ValueError(f"got {count} losses for {len(given)} ids: there must be one loss per id")
            return self._rows_of(given), len(given)
        missing, left = self.missing, len(self) - self.back
        if count is None and self.ahead is not None and not self.ahead[1] and batch_size is None:
            count = missing  # the loader does not ask ahead
        elif count is None:
            count = min(batch_size or self.usual, left)
        if not count and not self.updates:
            raise ValueError(
                "it is not known how many examples the batch of this step has: pass size=, or batch_size= when you "
                "make the sampler"
            )
        expected = count if batch_size is None else min(batch_size, left)
        if count != expected or not 0 < count <= missing:
            raise ValueError(
                f"got losses of {count} examples for a batch of {min(expected, missing)}: call update once per "
                "training step, with the loss of every example of the batch, or pass the ids that travelled with it. "
                "To evaluate, loop over a second DataLoader"
            )
        if self.ahead is None:
            self.ahead = [count, missing - count]
            self._is_limited = self.exhausted  # near the end of an epoch, a loader cannot ask ahead as far as always
        self.has_gap |= missing - count > self.ahead[1] and (self.is_even or not self.ahead[1])
        return slice(self.back, self.back + count), count

    def _rows_of(self, ids: Tensor) -> Tensor:
        if self._rows_by_id is None:
            in_order, rows = self._rows_by_id = self.ids.sort(stable=True)
            self._has_repeats = bool((in_order[1:] == in_order[:-1]).any())
        in_order, rows = self._rows_by_id
        places = torch.searchsorted(in_order, ids).clamp(max=max(0, len(in_order) - 1))
        unknown = in_order[places] != ids if len(in_order) else torch.ones_like(ids, dtype=torch.bool)
        if bool(unknown.any()):
            raise ValueError(
                f"the ids {ids[unknown][:5].tolist()} were not asked for in this epoch: pass the ids of the batch, as "
                "your data set gives them out"
            )
        return rows[places]

    def come_back(self, rows: Rows, count: int, losses: Copy | None) -> tuple[int, int]:
        """Take note of a batch, and count candidates. losses: None for a step that was left out."""
        self.is_even &= self.last == 0 or (self.last == self.usual and count <= self.usual)
        self.last, self.updates, self.usual = count, self.updates + 1, max(count, self.usual)
        self.by_ids = not isinstance(rows, slice)
        if isinstance(rows, slice):
            self.back += count
        else:
            self.came = torch.zeros(len(self), dtype=torch.bool) if self.came is None else self.came
            self.came[rows] = True
            if self._has_repeats:  # the user's sampler draws with replacement: losses are of the example, not of a draw
                self.came |= torch.isin(self.ids, self.ids[rows])
            self.back = int(self.came.sum())
        if losses is not None:
            self._losses.append([self.ids[rows], losses[0]])
            self._arriving.append((self._losses[-1], losses))
        return self.count(self.back)

    def count(self, reached: int) -> tuple[int, int]:
        """Count candidates of all ranks, evenly over the ids. Returns how many more are offered, and how many skipped.

        reached: ids of this rank up to which candidates count.
        """
        offered, skipped = self.counted, self.skipped
        self.counted = round(self.offered * reached / max(1, len(self.ids)))
        self.skipped = max(0, self.counted - min(reached, self.back or reached) * len(self.plans))
        return self.counted - offered, self.skipped - skipped

    # ---- the end

    def problem(self, method: str, learns_losses: bool) -> str | None:
        """Say why the losses cannot be told apart; None if they fit what was handed out."""
        if not self.updates and self.exhausted and learns_losses:
            return (
                f"{method} selects by training losses, but none came back for the {len(self)} ids that were handed out "
                "last: call sampler.update(losses) in every training step. To evaluate, or to look at a batch, loop "
                "over a second DataLoader. If there was no step, your loader's drop_last has dropped the ids: use "
                "smaller batches"
            )
        fits = not self.has_gap
        if self.exhausted:
            fits &= not self.missing or (self.is_even and self.missing < self.usual)
        if not self.updates or self.by_ids or fits:
            return None
        return (
            f"{method} got losses of {self.back:,} of the {self.asked:,} ids that your loader asked for, so it is not "
            "known which losses belong to which examples, and none of this epoch was recorded: call "
            "sampler.update(None) in a step that is left out, or let ids travel with the batch and call "
            "sampler.update(losses, ids). If something divides batches among ranks, as Accelerate does, pass "
            "divide=False to SelectiveSampler. If it skips the first batches of an epoch, load the sampler's state "
            "instead"
        )

    def is_doubtful(self, known: Ahead | None) -> bool:
        """Whether a first step without update could have shifted losses without being noticed.

        It looks like a loader that asks ahead, unless the end of the epoch shows how many batches there were.

        known: how far the loader asks ahead, by an epoch of which all losses came; None if there was none yet.
        """
        if self.by_ids or self.ahead is None or not self.updates:
            return False
        is_less = self.ahead_before is not None and self.ahead[1] < self.ahead_before[1] and not self._is_limited
        if self.exhausted or not self.ahead[1]:
            return is_less
        return is_less or known is None or known[0] != self.ahead[0] or known[1] < self.ahead[1]

    def steps(self, before: int) -> list[StepLosses]:
        """Return the losses that came back. before: number of training batches in the run before this epoch."""
        self.finish_copies()
        return [StepLosses(before + step, self.number, ids, losses) for step, (ids, losses) in enumerate(self._losses)]

    def trained_ids(self) -> Tensor:
        """Return the ids that were trained on; if nobody tells losses, those that were asked for."""
        return torch.cat([NO_IDS, *(ids for ids, _ in self._losses)]) if self.updates else self.ids[: self.asked]

    # ---- saving

    def plan_state(self) -> dict[str, Any]:
        """Return what stays as it is while the epoch runs."""
        plans = [[plan.ids, plan.weights] for plan in self.plans]
        return {"number": self.number, "plans": plans, "rank": self.rank, "offered": self.offered}

    def place(self, *, is_over: bool) -> dict[str, Any]:
        """Return what changes while the epoch runs."""
        found = {name: getattr(self, name) for name in _SAVED}
        return found | {
            "asked": self.asked,
            "ahead": self.ahead or self.ahead_before,
            "over": is_over,
            "losses": self._losses,
        }

    def finish_copies(self) -> None:
        """Wait for losses that are on their way from a GPU."""
        for step, copied in self._arriving:
            step[1] = finish_copy(copied)
        self._arriving.clear()

    @staticmethod
    def from_state(state: dict[str, Any], rank: int, num_ranks: int) -> HeldLosses:
        """Go on after the ids that have come back. The others are handed out again.

        If there are more or fewer ranks than have saved, they divide what is left anew.
        """
        place, plans, offered = state["place"], [IdBatch(*one) for one in state["plans"]], state["offered"]
        is_own, done = rank == state["rank"], place["back"] if place["updates"] else place["asked"]
        if place["came"] is not None and is_own:  # what came back comes first
            plans[rank] = plans[rank].part((~place["came"]).to(torch.int8).argsort(stable=True))
        if len(plans) != num_ranks:
            plans = evened([plan.part(slice(done, None)) for plan in plans], num_ranks)
            fewest = min(len(plan.ids) for plan in plans)
            plans, offered = [plan.part(slice(fewest)) for plan in plans], offered - place["counted"]
            place, done = place | {"back": 0, "counted": 0, "skipped": 0}, 0
        epoch = HeldLosses(state["number"], plans, rank, offered)
        for name in _SAVED:
            setattr(epoch, name, place[name])
        epoch.came = torch.arange(len(epoch)) < done if place["came"] is not None else None
        if is_own or num_ranks == 1:  # other ranks have losses of their own
            epoch._losses = [[ids, losses.to("cpu", torch.float32)] for ids, losses in place["losses"]]
        epoch.begin_at(done)
        epoch.was_over, epoch.ahead_before = place["over"], place["ahead"]
        epoch.exhausted = place["over"] or done >= len(epoch)
        return epoch
