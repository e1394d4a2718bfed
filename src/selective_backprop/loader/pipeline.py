"""The way of candidates through the loader: taken, decided about, queued; one candidate batch after the other.

# N = candidates, B = training batch
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Layout
from selective_backprop.batches.padding import Pad, ShapeCheck
from selective_backprop.distributed.ledger import ShardedLedger
from selective_backprop.distributed.queue import RankedAssembler
from selective_backprop.distributed.team import Rounds
from selective_backprop.loader.index_stream import IndexStream
from selective_backprop.loader.loading import Intake, Loaded
from selective_backprop.loader.queue import Assembler
from selective_backprop.loader.runner import Selector
from selective_backprop.loader.source import Source
from selective_backprop.loader.stats import Stats
from selective_backprop.types import Selection

_logger = logging.getLogger(__name__)

_NO_IDS = torch.empty(0, dtype=torch.int64)
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
        """Fraction of this epoch's candidates offered so far."""
        self.keeps_everything = True
        """Whether every candidate of this epoch so far is trained on in it, on all ranks."""
        self.drains = False
        """Whether the epoch, of which all candidates have been offered, gives out all that waits: its candidates."""
        self._starts_empty = True  # whether nothing waited when this epoch began
        self._num_carried = 0  # examples that waited then, on all ranks, where they are not offered again
        self._num_passed = 0  # of these, passed over among this rank's candidates so far
        self._began = self._counts()  # counts of examples and batches at the start of this epoch
        self._num_silent = 0  # epochs that gave out no batch
        self.num_batches = source.num_batches
        """Candidate batches of an epoch, on the rank that has most of them; None if not known."""
        self.num_candidates = source.num_candidates
        """The most candidates an epoch can have, on the rank that has most of them; None if not known."""
        self._same_each_epoch = source.offers_the_same_each_epoch
        self._most_waiting: int | None = None  # examples that can wait on each rank, as none waits twice
        self._limit_sizes(source)
        size = batch_size or source.batch_size
        size = self._training_size(size) if size is not None else None
        self.queue = Assembler(size, pad)
        # Parts call back by a weak reference: in a cycle, workers would live on until garbage is collected.
        this = weakref.proxy(self)
        if rounds is not None:
            self.queue = RankedAssembler(rounds.ranks, device, size, pad)
            self.num_batches = rounds.num_batches
            rounds.meanwhile = lambda: this._load_ahead()
        self._check_shapes = ShapeCheck((lambda count: this._mixes(count)) if pad is None else lambda _: False)

    def _limit_sizes(self, source: Source) -> None:
        """Find out how many candidates there are; with several ranks, on all of them."""
        own = torch.tensor([source.num_candidates or 0, self._same_each_epoch])
        counts, same = own[:1], own[1:]
        if self._rounds is not None:
            ranks = self._rounds.ranks
            counts, same = torch.stack(ranks.gather(own, [len(own)] * ranks.size)).unbind(1)
        known = bool(counts.all())
        self.num_candidates = int(counts.max()) if known else None
        self._same_each_epoch = bool(same.all())
        if self._selector.skips_waiting and not self._selector.schedule.never_on:
            examples = source.num_kept or 0
            most = (min(examples, int(counts.sum())) if known else examples) // len(counts)
            method = self._selector.method
            if method.scorer.needs.selection_pass and method.batch_scale == 1:
                most //= 2  # of what does not wait yet, few may be selected: the last ones would hold up all others
            self._most_waiting = max(1, most)

    @property
    def may_carry_over(self) -> bool:
        """Whether examples that waited when an epoch began can be given out in it beside all of its candidates."""
        selector, same = self._selector, self._same_each_epoch
        if selector.schedule.never_on or selector.scorer.needs.training_pass:
            return False  # nothing ever waits
        return not (selector.skips_waiting and same)

    def begin(self, *, resumed: bool) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        waiting = _NO_IDS if resumed else self._carry_over()
        plan = self._selector.plan(
            self.epoch,
            self.num_batches,
            waiting=waiting,
            num_waiting=self._num_carried,
            batch_size=self.queue.batch_size,
        )
        self._intake.begin(plan, waiting)

    def _carry_over(self) -> Tensor:
        """Count what waits as this epoch's: returns its ids, in order, which are no candidates again."""
        skips_waiting = self._selector.skips_waiting
        self._began = self._counts()
        self._starts_empty, self.drains = self.queue.empty, False
        self.keeps_everything = self._starts_empty or skips_waiting
        self._num_carried = self._num_passed = 0
        if self._starts_empty or not skips_waiting:
            return _NO_IDS
        ids = self.queue.waiting_ids()
        if self._rounds is not None:
            ids = torch.cat(self._rounds.ranks.gather(ids))
        self._num_carried = len(ids)
        if self._selector.unbiased:
            self.queue.add_weight(1.0)  # the expected weight of the draw that they miss
        rising: Tensor = torch.unique_consecutive(ids.sort().values)
        return rising

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
            skipped = len(stream.tail) - stream.tail_waiting if stream is not None else 0
            loaded, on = self._rounds.meet(loaded, on=on, probing=probing, skipped=skipped), self._rounds.on
            probing = self._rounds.probing
        elif loaded is not None:
            on = self._selector.is_on(self.epoch, self.fraction, loaded.batch_idx)
            probing = not on and self._selector.wants_scores(self.epoch, self.fraction, loaded.batch_idx)
        if loaded is None:
            self._finish(stream)
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

    def _finish(self, stream: IndexStream | None) -> None:
        """All candidates of the epoch have been offered."""
        num_skipped = 0
        if stream is not None:
            self._count_offered(stream.tail, num_loaded=0)
            num_skipped = len(stream.tail) - stream.tail_waiting
            self._num_passed += stream.tail_waiting
            # A state saved after this must not have it counted again.
            stream.tail, stream.tail_waiting = stream.tail[:0], 0
        if any(self._rounds.offered) if self._rounds is not None else num_skipped:
            self.keeps_everything = False
        self.fraction = 1.0
        self.drains = self.keeps_everything and (self._starts_empty or self._all_passed())

    def _all_passed(self) -> bool:
        """Whether all examples that waited when the epoch began were among its candidates."""
        passed = torch.tensor([self._num_passed])
        if self._rounds is not None:
            passed = torch.cat(self._rounds.ranks.gather(passed, [1] * self._rounds.ranks.size))
        return int(passed.sum()) >= self._num_carried

    def _counts(self) -> dict[str, int]:
        stats = self._stats
        return {"offered": stats.offered, "selected": stats.trained + stats.queued, "batches": stats.batches}

    def note_silence(self) -> None:
        """Say why, if the epoch gave out no batch: the first time, and then every tenth."""
        now = self._counts()
        if now["batches"] > self._began["batches"]:
            return
        self._num_silent += 1
        if self._num_silent % 10 != 1 or (self._rounds is not None and self._rounds.ranks.rank):
            return
        _logger.warning(
            "an epoch gave out no batch: %d of %d candidates were selected, and %d selected examples wait for a batch "
            "of %s to fill. Use a smaller batch_size= or a higher selectivity",
            now["selected"] - self._began["selected"],
            now["offered"] - self._began["offered"],
            self._stats.queued,
            self.queue.batch_size,
        )

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
            self.queue.batch_size = self._training_size(max(self._rounds.sizes) if self._rounds is not None else size)
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
            num_offered = size
            if loaded.chunk is not None:
                num_offered = loaded.chunk.offered.numel() - loaded.chunk.num_waiting
                self._num_passed += loaded.chunk.num_waiting
            self.keeps_everything = self.keeps_everything and self._all_kept(selection, num_offered)
            as_is = self._is_plain and self._passes_batches and self._same_sizes()
            if size:
                self.queue.add(columns, selection, ids, as_is=as_is)
            if ids is not None and not self._selector.selecting:
                self._selector.ledger.record_probabilities(ids, selection.probabilities)
                self._selector.ledger.count_selected(ids.index_select(0, selection.positions))
            self._count_offered(offered, num_loaded=size)
            self.fraction = loaded.fraction
            if isinstance(self.queue, RankedAssembler) and self._rounds is not None and not as_is:
                self.queue.count(self._rounds.selected)

    @property
    def _is_plain(self) -> bool:
        """Whether the epoch so far is that of plain training."""
        return self.keeps_everything and self._starts_empty

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
        return None if self._is_plain else self._intake.look_ahead()

    def _look_ahead(self, batch_idx: int) -> None:
        """Have the next candidates scored while these are trained on, by a scorer that can."""
        if not self._is_plain and self._selector.works_ahead(self.epoch + self.fraction, batch_idx):
            self._selector.submit(self._intake.look_ahead())

    def _count_offered(self, ids: Tensor | None, num_loaded: int) -> None:
        num_offered = num_loaded if ids is None else len(ids)
        self._stats.offered += num_offered
        self._stats.skipped_before_loading += num_offered - num_loaded
        self._stats.queued = len(self.queue)
        if ids is not None:
            self._selector.ledger.count_offered(ids)

    def _training_size(self, batch_size: int) -> int:
        """Examples in a training batch, where so many were asked for."""
        size, most = max(1, round(batch_size * self._selector.method.batch_scale)), self._most_waiting
        if most is None or size <= most:
            return size
        if self._rounds is None or self._rounds.ranks.rank == 0:
            _logger.warning(
                "training batches of %d are too large for this data set, because no batch holds an example twice: "
                "they will have %d examples. Pass a smaller batch_size= to choose the size yourself",
                size,
                most,
            )
        return most

    def parts(self) -> list[object]:
        """What a state is loaded into."""
        parts: list[object] = [self, self.queue, self._intake, self._intake.source]
        return parts if self._rounds is None else [*parts, self._rounds]

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "fraction": self.fraction,
            "keeps_everything": self.keeps_everything,
            "carried": [self._starts_empty, self._num_carried, self._num_passed],
            "drains": self.drains,
            "began": self._began,
            "silent": self._num_silent,
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
        self.keeps_everything, self.drains = state["keeps_everything"], state["drains"]
        self._starts_empty, self._num_carried, self._num_passed = state["carried"]
        self._began, self._num_silent = dict(state["began"]), state["silent"]
        if self._rounds is not None:
            self._rounds.number = state["round"]
            self._rounds.has_offered = state["round"] > 0 or state["epoch"] > 0
