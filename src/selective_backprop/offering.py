"""The way of candidates through the loader: taken, decided about, queued; one candidate batch after the other.

# N = candidates, B = training batch
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from selective_backprop.assembler import Assembler
from selective_backprop.batches import Layout
from selective_backprop.intake import Intake, Loaded
from selective_backprop.padding import Pad, ShapeCheck
from selective_backprop.ranked_assembler import RankedAssembler
from selective_backprop.rounds import Rounds
from selective_backprop.selector import Selector
from selective_backprop.sharded_ledger import ShardedLedger
from selective_backprop.stats import Stats
from selective_backprop.types import Selection

_DELIVER_EVERY = 64  # rounds after which ranks send each other what they learned about examples


class Offering:
    """Offers an epoch's candidates to the selector and queues what it chose, on all ranks in step."""

    def __init__(
        self,
        intake: Intake,
        selector: Selector,
        stats: Stats,
        *,
        rounds: Rounds | None,
        device: torch.device,
        batch_size: int | None,
        pad: Pad | None,
    ) -> None:
        self._intake, self._selector, self._stats, self._rounds = intake, selector, stats, rounds
        source, scale = intake.source, selector.method.batch_scale
        self._passes_batches = batch_size is None and scale == 1  # as they are, while everything is kept
        self.epoch = 0
        self.fraction = 0.0
        """Of this epoch's candidates, offered."""
        self.keeps_everything = True
        """So far in this epoch, on all ranks."""
        self.num_batches = source.num_batches
        """Candidate batches of an epoch, on the rank that has most of them; None if not known."""
        size = batch_size or source.batch_size
        size = self._scaled(size) if size is not None else None
        self.queue = Assembler(size, pad)
        # Parts call back by a weak reference: in a cycle, workers would live on until garbage is collected.
        this = weakref.proxy(self)
        if rounds is not None:
            self.queue = RankedAssembler(rounds.ranks, device, size, pad)
            self.num_batches = rounds.num_batches
            rounds.meanwhile = lambda: this._load_ahead()
        self._check_shapes = ShapeCheck((lambda count: this._mixes(count)) if pad is None else lambda _: False)

    def begin(self) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        self._intake.begin(self._selector.plan(self.epoch, self.num_batches))

    def offer(self) -> bool:
        """Decide about the next candidates; False at the end of the epoch."""
        loaded, on = self._intake.take(), False
        stream = self._intake.source.stream
        if self._rounds is not None:
            probing = False
            if loaded is None:  # the epoch may be over: ask without an effect on a schedule that counts batches
                on = self._selector.expects_on(self.epoch, self.fraction, self._rounds.number)
            else:
                on = self._selector.is_on(self.epoch, self.fraction, loaded.batch_idx)
                probing = not on and self._selector.wants_scores(self.epoch, self.fraction, loaded.batch_idx)
            skipped = len(stream.tail) if stream is not None else 0
            loaded, on = self._rounds.meet(loaded, on=on, probing=probing, skipped=skipped), self._rounds.on
            probing = self._rounds.probing
        elif loaded is not None:
            on = self._selector.is_on(self.epoch, self.fraction, loaded.batch_idx)
            probing = not on and self._selector.wants_scores(self.epoch, self.fraction, loaded.batch_idx)
        if loaded is None:
            if stream is not None:
                self._count_offered(stream.tail, num_loaded=0)
                stream.tail = stream.tail[:0]  # a state saved after this must not have it counted again
            return False
        self._decide(loaded, on=on, probing=probing)
        self._look_ahead(loaded.batch_idx + 1)
        if self._rounds is not None and self._rounds.number % _DELIVER_EVERY == 0:
            self._deliver()
        return True

    @property
    def never_offered(self) -> bool:
        """Whether there was not one candidate so far, on any rank."""
        return self._stats.offered == 0 and (self._rounds is None or not self._rounds.has_offered)

    def release(self) -> None:
        """Nobody takes candidates for now: end the DataLoader's workers, but for persistent ones."""
        self._intake.release()

    def end(self) -> None:
        """The epoch is over, or its rest is left behind."""
        self._intake.ahead = None
        self._selector.submit(None)  # no thread may be at work when a DataLoader forks its workers
        self.epoch += 1
        self.fraction = 0.0
        if self._rounds is not None:
            self._rounds.number = 0
            self._deliver()

    def reopen(self) -> None:
        """The epoch that has just ended goes on: its last batch was given out and has come back."""
        self.epoch -= 1
        self.fraction = 1.0

    def move(self, device: torch.device) -> None:
        """Candidates come to this device from now on, and those that wait go there."""
        self._intake.move(device)
        if self.queue.layout is not None:
            self.queue.load_state_dict(self.queue.state_dict(), device)
        if isinstance(self.queue, RankedAssembler):
            self.queue.device = device

    def _deliver(self) -> None:
        ledger = self._selector.ledger
        if isinstance(ledger, ShardedLedger) and len(ledger):
            ledger.deliver()

    @property
    def transform(self) -> Any:
        """The user's, of candidate batches."""
        return self._intake.transform

    def resubmit(self) -> None:
        """After a resume: candidates that were loaded ahead are to be scored again."""
        self._selector.submit(self._intake.ahead)

    def _decide(self, loaded: Loaded, *, on: bool, probing: bool) -> None:
        data, ids, size = loaded.candidates.data, loaded.candidates.ids, loaded.candidates.size
        if self.queue.batch_size is None:
            self.queue.batch_size = self._scaled(max(self._rounds.sizes) if self._rounds is not None else size)
        if self.queue.layout is None and size:
            self.queue.layout = Layout.of(data, size)
        columns = []
        if size:
            assert self.queue.layout is not None
            columns = self.queue.layout.columns(data, size)
            self._check_shapes(columns)
        selection = self._selector.decide(loaded, self.queue.layout, epoch=self.epoch, on=on, probing=probing)
        with self._stats.timing("selecting"):
            offered = loaded.chunk.offered if loaded.chunk else None
            num_offered = size if offered is None else len(offered)
            self.keeps_everything = self.keeps_everything and self._all_kept(selection, num_offered)
            as_is = self.keeps_everything and self._passes_batches and self._same_sizes()
            if size:
                self.queue.add(columns, selection, ids, as_is=as_is)
            if ids is not None and not self._selector.selecting:
                self._selector.ledger.record_probabilities(ids, selection.probabilities)
                self._selector.ledger.count_selected(ids.index_select(0, selection.positions))
            self._count_offered(offered, num_loaded=size)
            self.fraction = loaded.fraction
            if isinstance(self.queue, RankedAssembler) and self._rounds is not None and not as_is:
                self.queue.count(self._rounds.selected)

    def _all_kept(self, selection: Selection, num_offered: int) -> bool:
        return selection.keeps_all(num_offered) if self._rounds is None else self._rounds.keep_all

    def _same_sizes(self) -> bool:
        """Whether all ranks have as many candidates as each other, so that their batches can be given out as is."""
        return self._rounds is None or len(set(self._rounds.sizes)) == 1

    def _mixes(self, num_candidates: int) -> bool:
        """Whether examples of different candidate batches come to share a training batch; found out by trying."""
        method, batch_size = self._selector.method, self.queue.batch_size
        if method.schedule.never_on or method.scorer.needs.training_pass:
            return False
        assert batch_size is not None
        counts = self._selector.trial_counts(num_candidates)
        return any(
            count % batch_size != 0 and not (count == num_candidates and self._passes_batches) for count in counts
        )

    def _load_ahead(self) -> Loaded | None:
        # Plain training loads a batch after the step before it, and augmentation may draw from the same random state
        # as dropout: as long as everything is kept, so do we, to the bit.
        return None if self.keeps_everything else self._intake.look_ahead()

    def _look_ahead(self, batch_idx: int) -> None:
        """Have the next candidates scored while these are trained on, by a scorer that can."""
        if not self.keeps_everything and self._selector.works_ahead(self.epoch + self.fraction, batch_idx):
            self._selector.submit(self._intake.look_ahead())

    def _count_offered(self, ids: Tensor | None, num_loaded: int) -> None:
        num_offered = num_loaded if ids is None else len(ids)
        self._stats.offered += num_offered
        self._stats.skipped_before_loading += num_offered - num_loaded
        self._stats.queued = len(self.queue)
        if ids is not None:
            self._selector.ledger.count_offered(ids)

    def _scaled(self, batch_size: int) -> int:
        return max(1, round(batch_size * self._selector.method.batch_scale))

    def parts(self) -> list[object]:
        """What a state is loaded into."""
        parts: list[object] = [self, self.queue, self._intake, self._intake.source]
        return parts if self._rounds is None else [*parts, self._rounds]

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "fraction": self.fraction,
            "keeps_everything": self.keeps_everything,
            "round": self._rounds.number if self._rounds is not None else 0,
            "batch_size": self.queue.batch_size,
            "queue": self.queue.state_dict(),
            **self._intake.state_dict(in_epoch=in_epoch, layout=self.queue.layout),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        if state["batch_size"] is not None:
            self.queue.batch_size = state["batch_size"]
            self.queue.load_state_dict(state["queue"], device)
        self._intake.load_state_dict(state, self.queue.layout)
        self.epoch, self.fraction = state["epoch"], state["fraction"]
        self.keeps_everything = state["keeps_everything"]
        if self._rounds is not None:
            self._rounds.number = state["round"]
            self._rounds.has_offered = state["round"] > 0 or state["epoch"] > 0
