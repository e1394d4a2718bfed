"""An epoch under way. It owns all that is true only while the epoch runs.

# N = candidates, B = training batch
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from selective_backprop.batches.layout import Column, RowCheck, move
from selective_backprop.batches.padding import Pad, PadToLongest, ShapeCheck
from selective_backprop.batches.plain import loaded_columns, saved_columns
from selective_backprop.distributed.agreement import fails_on_all
from selective_backprop.distributed.team import Meeting, Share, Team
from selective_backprop.loader.observer import Observer
from selective_backprop.loader.queue import Queue
from selective_backprop.loader.saved_batch import loaded_batch, saved_batch
from selective_backprop.loader.selector import Selector
from selective_backprop.loader.source import AnySource, IndexedSource, Loaded
from selective_backprop.loader.token_queue import TokenQueue
from selective_backprop.sampler.id_batches import IdBatches
from selective_backprop.sampler.parts import Parts
from selective_backprop.sampler.planner import Planner
from selective_backprop.types import Batch, Candidates

_logger = logging.getLogger(__name__)

_DELIVER_EVERY = 64  # batches between two exchanges of ledger entries among ranks


@dataclass
class Run:
    """What lasts from one epoch to the next: the parts that epochs are run with."""

    parts: Parts
    team: Team
    source: AnySource
    planner: Planner
    selector: Selector
    observer: Observer
    batch_size: int | None
    """B; None until the first batch is loaded if the loader does not say its batch size."""
    num_batches: int | None
    """The most candidate batches that an epoch can have on one rank; None if not known."""
    num_candidates: int | None
    """The most candidates that an epoch can have on one rank; None if not known."""
    passes_batches: bool
    """Whether a candidate batch may become a training batch unchanged, while every candidate is kept."""
    batch_tokens: int | None
    pad: Pad | None

    def plans(self, epoch: int) -> bool:
        """Whether this epoch is planned from the ledger, and not scored after loading."""
        source, scorer = self.source, self.parts.scorer
        return isinstance(source, IndexedSource) and source.can_be_planned and scorer.plans(epoch)

    def set_batch_size(self, batch_size: int | None) -> None:
        """Set B, when the first batch is loaded or a state."""
        self.batch_size = batch_size

    def make_queue(self) -> Queue:
        """Make the queue of an epoch."""
        if self.batch_tokens is not None:
            assert isinstance(self.pad, PadToLongest)
            return TokenQueue(self.batch_tokens, self.pad, self.source.device)
        return Queue(self.batch_size, self.pad, self.team.ranks, self.source.device)


class Epoch(ABC):
    """An epoch under way: `step` until a batch is ready or it returns False, then `take`.

    Args:
        run: the parts that epochs are run with.
        number: number of the epoch, from 0.
    """

    def __init__(self, run: Run, number: int) -> None:
        self._run, self.number = run, number
        self.fraction = 0.0
        """Fraction of this epoch's candidates offered so far."""
        self.num_given = 0
        """Number of training batches given out."""
        self.began_with = run.observer.stats.copy()
        """The statistics when the epoch began."""

    @property
    @abstractmethod
    def num_ready(self) -> int:
        """Number of training batches that can be taken now."""

    @property
    def most_ready(self) -> int:
        """The most training batches that the examples loaded so far can still make. It is the same on all ranks."""
        return self.num_ready

    @property
    def num_batches(self) -> int | None:
        """Number of training batches of the whole epoch, once it is known."""
        return None

    @abstractmethod
    def step(self) -> bool:
        """Load the next batch and decide what to do with it. False when the epoch has no candidates left."""

    @abstractmethod
    def take(self) -> Batch | None:
        """Take the next training batch; None if none is ready."""

    def end(self) -> None:
        """End the epoch. Candidates that have not been offered are dropped."""
        self._run.source.end()
        self._run.selector.submit(None)  # no thread may be at work when a DataLoader forks its workers
        self._run.observer.stats.set_queued(0)

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Move what waits to this device."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "fraction": self.fraction,
            "given": self.num_given,
            "began_with": self.began_with.state_dict(),
            "place": self._run.source.place(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fraction, self.num_given = state["fraction"], state["given"]
        self.began_with.load_state_dict(state["began_with"])
        self._run.source.resume(state["place"], self.number)

    # ---- the ids to load

    def begin(self) -> None:
        """Start the epoch."""
        source = self._run.source
        if not isinstance(source, IndexedSource):
            source.begin(self.number)
            return
        if self._run.plans(self.number) and not self._keeps_the_users_batches(source):
            source.begin(itertools.chain.from_iterable(self._planned(source)), self.number, None)
            return
        self._run.observer.stats.set_note(self._run.parts.why_all(self.number))
        if source.keep is not None:
            source.begin(itertools.chain.from_iterable(self._unpruned(source)), self.number, None)
        else:
            source.begin(source.candidate_batches(), self.number, source.num_batches)

    def _planned(self, source: IndexedSource) -> Iterator[IdBatches]:
        """Plan the epoch, when its first batch is asked for, and yield all its batches at once.

        This is a generator, because a DataLoader asks for indices inside its own constructor, after it has drawn a
        seed for its workers. Only then may the user's sampler draw, so that it draws what it would without us.
        """
        run = self._run
        stats = run.observer.stats
        phase = stats.switch("selecting")
        with fails_on_all(run.team.ranks, "could not plan this epoch"):
            candidates = source.all_candidates()
        size = run.batch_size or max(run.team.count(max([1, *candidates.sizes.tolist()])))
        plan = run.planner.plan(candidates, self.number, at_least=size, drop_last=source.drop_last)
        if plan.keeps_all and run.passes_batches and len(set(run.team.count(len(candidates)))) == 1:
            batches = candidates
        else:
            batches = plan.batches(size, drop_last=source.drop_last and run.batch_tokens is None)
            stats.count(dropped=len(plan.ids) - len(batches.ids))
        stats.set_note(plan.note)
        stats.switch(phase)
        self._know(candidates, batches)
        source.know(batches)
        yield batches

    def _keeps_the_users_batches(self, source: IndexedSource) -> bool:
        """Whether nothing is to be planned: everything is trained on, in the user's own batches.

        Several ranks plan even then, to find out whether they have equally many batches.
        """
        run = self._run
        if run.team.size > 1 or not run.passes_batches or source.keep is not None:
            return False
        if run.parts.schedule.never_on:
            return True
        if source.num_batches is None:
            return False
        # At first no losses are known, so every example is trained on.
        nothing_known = run.parts.scorer.needs.training_losses and not run.observer.ledger.has_losses()
        return nothing_known or not run.parts.schedule.on_in_epoch(
            self.number, source.num_batches, run.parts.num_epochs
        )

    def _unpruned(self, source: IndexedSource) -> Iterator[IdBatches]:
        batches = source.all_candidates()
        source.know(batches)
        yield batches

    @abstractmethod
    def _know(self, candidates: IdBatches, batches: IdBatches) -> None:
        """Take note of the plan: of all candidates, these batches are loaded."""


class PlannedEpoch(Epoch):
    """An epoch whose training batches the user's DataLoader itself forms, from the planned ids. It needs no queue."""

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run, number)
        self._ready: deque[Batch] = deque()
        self._num_planned: int | None = None  # training batches of the epoch
        self._num_offered: int | None = None  # candidates of the epoch; None while the user's own batches pass
        self._counted = 0  # candidates counted as offered
        self._check_rows = RowCheck()

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def num_batches(self) -> int | None:
        return self._num_planned

    def _know(self, candidates: IdBatches, batches: IdBatches) -> None:
        self._num_offered, self._num_planned = len(candidates.ids), len(batches)
        self._run.observer.offered(candidates.ids, 0, loaded=0)

    def step(self) -> bool:
        run = self._run
        loaded = run.source.next()
        if loaded is None:
            run.observer.deliver()  # or entries of epochs with few batches would pile up
            self._count(self._num_offered or 0, 0)
            self.fraction = 1.0
            return False
        self.fraction = loaded.fraction
        candidates = loaded.candidates
        self._check_rows(candidates.data, candidates.size)
        self._ready.append(Batch(candidates.data, candidates.ids, *loaded.planned()))
        if self._num_offered is None:
            run.observer.offered(candidates.ids, candidates.size, loaded=candidates.size)
        else:
            # Candidates count evenly over the epoch's batches, so that statistics make sense in mid-epoch too. What is
            # loaded always counts: or a smaller last batch would make the number of skipped ones negative before it.
            reached = max(round(self.fraction * self._num_offered), self._counted + candidates.size)
            self._count(min(reached, self._num_offered), candidates.size)
        if run.team.size > 1 and (loaded.batch_idx + 1) % _DELIVER_EVERY == 0:
            run.observer.deliver()
        return True

    def _count(self, reached: int, loaded: int) -> None:
        self._run.observer.offered(None, reached - self._counted, loaded=loaded)
        self._counted = reached

    def take(self) -> Batch | None:
        if not self._ready:
            return None
        batch = self._ready.popleft()
        self.num_given += 1
        self._run.observer.given_out(batch, sum(map(len, self._ready)))
        return batch

    def move(self, device: torch.device) -> None:
        self._ready = deque(
            Batch(move(batch.data, device), batch.ids, batch.weights, batch.probabilities) for batch in self._ready
        )

    def state_dict(self) -> dict[str, Any]:
        counts = {"planned": self._num_planned, "offered": self._num_offered, "counted": self._counted}
        ready = [saved_batch(batch) for batch in self._ready]
        return super().state_dict() | counts | {"kind": "planned", "ready": ready}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._num_planned, self._num_offered = state["planned"], state["offered"]
        self._counted = state["counted"]
        self._ready.extend(loaded_batch(batch, self._run.source.device) for batch in state["ready"])


class ScoredEpoch(Epoch):
    """An epoch whose candidates are scored and selected after loading. The selected ones are queued.

    With batches by tokens, planned epochs go this way too: only what is loaded tells the length of an example.
    """

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(run, number)
        self.queue = run.make_queue()
        self._ahead: Loaded | None = None  # the next candidates, if they were loaded before their turn
        self._keeps_everything = True  # whether every candidate of this epoch so far was kept, on all ranks
        self._round = 0
        self._is_planned = run.plans(number)
        self._shapes_differ = ShapeCheck()

    @property
    def num_ready(self) -> int:
        return self.queue.num_ready

    @property
    def most_ready(self) -> int:
        return self.queue.most_batches

    def _know(self, candidates: IdBatches, batches: IdBatches) -> None:
        skipped = len(candidates.ids) - len(batches.ids)
        self._run.observer.offered(candidates.ids, skipped, loaded=0)

    def step(self) -> bool:
        run = self._run
        if self.queue.is_finished:
            return False
        loaded, self._ahead = self._ahead or run.source.next(), None
        run.observer.stats.switch("selecting")
        meeting = self._meet(loaded)
        if meeting.is_over:
            self._finish()
            return False
        if loaded is None:  # this rank has run out of candidates, and others have not
            loaded = Loaded(Candidates(None, None, 0), None, self._round, 1.0)
        self._round += 1
        columns = self._columns(loaded.candidates, max(meeting.sizes))
        share = run.selector.choose(loaded, meeting, self.number)
        self._enqueue(loaded, columns, share, meeting.sizes)
        self._record(loaded)
        self.fraction = meeting.fraction
        self.queue.hold_back(self._is_near_the_end())
        self._submit_next()
        if run.team.size > 1 and self._round % _DELIVER_EVERY == 0:
            run.observer.deliver()
        return True

    def _meet(self, loaded: Loaded | None) -> Meeting:
        """Tell the other ranks what this rank brings to the next round."""
        run, schedule = self._run, self._run.parts.schedule
        place = self.number + self.fraction, self._round, run.parts.num_epochs
        if loaded is not None:
            schedule.advance(*place)
        on = not self._is_planned and schedule.is_on(*place)
        probing = not on and not self._is_planned and schedule.wants_scores(*place)
        if loaded is None:
            return run.team.meet(0, 1.0, is_over=True, on=on, probing=probing)
        return run.team.meet(loaded.candidates.size, loaded.fraction, is_over=False, on=on, probing=probing)

    def _columns(self, candidates: Candidates, largest: int) -> list[Column]:
        """Split the candidates into the queue's columns. Raises if they could not share a training batch."""
        run = self._run
        if run.batch_size is None:
            batch_size = max(1, round(largest * run.parts.method.batch_scale))
            run.set_batch_size(batch_size)
            self.queue.set_batch_size(batch_size)
        columns = self.queue.columns_of(candidates.data, candidates.size)
        mixes = run.pad is None and run.parts.mixes_batches
        if mixes and columns and (problem := self._shapes_differ(columns)) is not None:
            raise problem
        return columns

    def _enqueue(self, loaded: Loaded, columns: list[Column], share: Share, sizes: list[int]) -> None:
        """Queue the selected candidates; as a batch of their own while the epoch is like plain training."""
        self._keeps_everything = self._keeps_everything and share.keeps_all and not self._is_planned
        ids = loaded.candidates.ids
        if self._keeps_everything and self._run.passes_batches and min(sizes) == max(sizes):
            self.queue.add_whole(columns, share.selection, ids)
        else:
            self.queue.add(columns, share.selection, ids, share.counts, keeps_all=share.keeps_all)

    def _record(self, loaded: Loaded) -> None:
        ids, size = loaded.candidates.ids, loaded.candidates.size
        self._run.observer.offered(None if self._is_planned else ids, size, loaded=size)
        self._run.observer.stats.set_queued(len(self.queue))

    def _is_near_the_end(self) -> bool:
        """Whether so few examples may still be selected in this epoch that the last batches have to share them."""
        run = self._run
        if run.num_candidates is None or run.num_batches is None or run.batch_size is None:
            return True
        left, selectivity = 1 - self.fraction, run.parts.policy.selectivity or 0.1
        # The last candidate batch may be a small one, so it does not count.
        return left * run.num_batches < 1.5 or left * run.num_candidates * selectivity < 4 * run.batch_size

    def _submit_next(self) -> None:
        """Let a scorer that works ahead begin with the next candidates while the current ones are trained on.

        Plain training loads a batch after the training step before it, and augmentation may draw from the same random
        state as dropout. To equal plain training bit for bit, nothing is loaded ahead while everything is kept.
        """
        run = self._run
        if run.selector.pipeline is None or self._keeps_everything or self._is_planned:
            return
        if run.parts.schedule.is_on(self.number + self.fraction, self._round, run.parts.num_epochs):
            self._ahead = run.source.next()
            run.selector.submit(self._ahead)

    def _finish(self) -> None:
        """Give out what is left: no rank has candidates any more."""
        self._run.observer.deliver()  # or entries of epochs with few rounds would pile up
        drop_last = self._run.source.drop_last
        dropped = self.queue.finish(drop_last=drop_last and not (self._keeps_everything and self._run.passes_batches))
        self._run.observer.stats.count(dropped=dropped)
        self._run.observer.stats.set_queued(len(self.queue))
        self.fraction = 1.0

    def take(self) -> Batch | None:
        batch = self.queue.pop()
        if batch is not None:
            self.num_given += 1
            self._run.observer.given_out(batch, len(self.queue))
        return batch

    def move(self, device: torch.device) -> None:
        self.queue.move(device)
        if self._ahead is not None:
            ahead, candidates = self._ahead, self._ahead.candidates
            moved = Candidates(move(candidates.data, device), candidates.ids, candidates.size)
            self._ahead = Loaded(moved, ahead.asked, ahead.batch_idx, ahead.fraction)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "kind": "scored",
            "queue": self.queue.state_dict(),
            "ahead": self._ahead_state(),
            "keeps_everything": self._keeps_everything,
            "round": self._round,
        }

    def _ahead_state(self) -> dict[str, Any] | None:
        ahead = self._ahead
        if ahead is None:
            return None
        assert self.queue.layout is not None  # known from the first candidates, which are never loaded ahead
        return {
            "columns": saved_columns(self.queue.layout, self.queue.layout.columns(ahead.candidates.data)),
            "size": ahead.candidates.size,
            "asked": None if ahead.asked is None else IdBatches.join([ahead.asked]).state_dict(),
            "batch_idx": ahead.batch_idx,
            "fraction": ahead.fraction,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.queue.load_state_dict(state["queue"])
        self._keeps_everything, self._round = state["keeps_everything"], state["round"]
        self.queue.hold_back(self._is_near_the_end())
        if (ahead := state["ahead"]) is not None:
            assert self.queue.layout is not None
            device = self._run.source.device
            data = self.queue.layout.batch([move(column, device) for column in loaded_columns(ahead["columns"])])
            asked = None if ahead["asked"] is None else next(iter(IdBatches.from_state_dict(ahead["asked"])))
            candidates = Candidates(data, None if asked is None else asked.ids, ahead["size"])
            self._ahead = Loaded(candidates, asked, ahead["batch_idx"], ahead["fraction"])
        # Without candidates ahead, this drops scores of candidates that another number of ranks had loaded ahead.
        self._run.selector.submit(self._ahead)


AnyEpoch = PlannedEpoch | ScoredEpoch


def begin_epoch(run: Run, number: int) -> AnyEpoch:
    """Start an epoch of the kind that the method makes it."""
    is_planned = run.plans(number) and run.batch_tokens is None
    epoch: AnyEpoch = PlannedEpoch(run, number) if is_planned else ScoredEpoch(run, number)
    epoch.begin()
    return epoch


def resume_epoch(run: Run, number: int, state: dict[str, Any]) -> AnyEpoch:
    """Go on with an epoch that was under way when the state was saved."""
    epoch: AnyEpoch = PlannedEpoch(run, number) if state["kind"] == "planned" else ScoredEpoch(run, number)
    epoch.load_state_dict(state)
    return epoch
