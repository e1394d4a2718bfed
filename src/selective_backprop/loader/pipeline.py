"""The way of a candidate batch: loaded, scored, selected from, queued. `step` is one batch's, from top to bottom.

# N = candidates, B = training batch
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Column
from selective_backprop.batches.padding import Pad, ShapeCheck
from selective_backprop.distributed.team import Brought, Choice, Round, Team
from selective_backprop.loader.loading import Loaded, Loading
from selective_backprop.loader.queue import Queue
from selective_backprop.loader.runner import Runner
from selective_backprop.loader.stats import Stats
from selective_backprop.types import Candidates, Selection

_logger = logging.getLogger(__name__)

_NO_IDS = torch.empty(0, dtype=torch.int64)
_DELIVER_EVERY = 64  # rounds after which ranks send each other what they learned about examples


class Pipeline:
    """Moves candidates from the user's loader into the queue of training batches, on all ranks in step.

    Args:
        loading: gives candidates.
        runner: scores them and selects among them.
        stats: counts what happens.
        team: the ranks that go through their candidates together.
        num_batches: candidate batches of an epoch, on the rank that has most of them; None if not known.
        device: where candidates are.
        batch_size: B, where the user asked for it.
        pad: makes examples of different lengths the same shape.
        num_epochs: length of the run; None if not known.
    """

    def __init__(
        self,
        loading: Loading,
        runner: Runner,
        stats: Stats,
        *,
        team: Team,
        num_batches: int | None,
        device: torch.device,
        batch_size: int | None,
        pad: Pad | None,
        num_epochs: int | None,
    ) -> None:
        self._loading, self._runner, self._stats, self.team = loading, runner, stats, team
        self._num_epochs = num_epochs
        source, scale = loading.source, runner.method.batch_scale
        self._passes_batches = batch_size is None and scale == 1  # as they are, while everything is kept
        self._in_training = runner.scorer.needs.training_pass  # selection happens in the training step
        self.epoch = 0
        self.fraction = 0.0
        """Fraction of this epoch's candidates offered so far."""
        self.drains = False
        """Whether the epoch, of which all candidates have been offered, gives out all that waits: its candidates."""
        self.num_batches = num_batches
        """Candidate batches of an epoch, on the rank that has most of them; None if not known."""
        self.num_candidates = source.num_candidates
        """The most candidates an epoch can have, on the rank that has most of them; None if not known."""
        self._keeps_everything = True  # whether every candidate of this epoch so far is trained on in it, on all ranks
        self._starts_empty = True  # whether nothing waited when this epoch began
        self._num_carried = 0  # examples that waited then, on all ranks, where they are not offered again
        self._num_passed = 0  # of these, passed over among this rank's candidates so far
        self._round = 0  # rounds of this epoch so far
        self._has_offered = False  # whether any rank had candidates so far
        self._began = self._counts()  # counts of examples and batches at the start of this epoch
        self._num_silent = 0  # epochs that gave out no batch
        self._same_each_epoch = source.offers_the_same_each_epoch
        self._most_waiting: int | None = None  # examples that can wait on each rank, as none waits twice
        self._limit_sizes()
        size = batch_size or source.batch_size
        self.queue = Queue(self._training_size(size) if size is not None else None, pad, team.ranks, device)
        self._differing = ShapeCheck()
        if pad is not None:
            self._differing.stop()

    def _limit_sizes(self) -> None:
        """Find out how many candidates there are; on all ranks."""
        source, runner = self._loading.source, self._runner
        told = self.team.ranks.share([source.num_candidates or 0, self._same_each_epoch])
        counts = [int(count) for count, _ in told]
        self.num_candidates = max(counts) if all(counts) else None
        self._same_each_epoch = all(same for _, same in told)
        if runner.skips_waiting and not runner.schedule.never_on:
            examples = source.num_kept or 0
            most = (min(examples, sum(counts)) if all(counts) else examples) // len(counts)
            if runner.scorer.needs.selection_pass and runner.method.batch_scale == 1:
                most //= 2  # of what does not wait yet, few may be selected: the last ones would hold up all others
            self._most_waiting = max(1, most)

    def _training_size(self, batch_size: int) -> int:
        """Examples in a training batch, where so many were asked for."""
        size, most = max(1, round(batch_size * self._runner.method.batch_scale)), self._most_waiting
        if most is None or size <= most:
            return size
        if self.team.speaks:
            _logger.warning(
                "training batches of %d are too large for this data set, because no batch holds an example twice: "
                "they will have %d examples. Pass a smaller batch_size= to choose the size yourself",
                size,
                most,
            )
        return most

    @property
    def may_carry_over(self) -> bool:
        """Whether examples that waited when an epoch began can be given out in it beside all of its candidates."""
        runner = self._runner
        if runner.schedule.never_on or self._in_training:
            return False  # nothing ever waits
        return not (runner.skips_waiting and self._same_each_epoch)

    @property
    def never_offered(self) -> bool:
        """Whether there was not one candidate so far, on any rank."""
        return self._stats.offered == 0 and not self._has_offered

    # ---- an epoch

    def begin(self, *, resumed: bool) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        waiting = _NO_IDS if resumed else self._carry_over()
        plan = self._runner.plan(
            self.epoch,
            self.num_batches,
            waiting=waiting,
            num_waiting=self._num_carried,
            batch_size=self.queue.batch_size,
        )
        self._loading.begin(plan, waiting)

    def _carry_over(self) -> Tensor:
        """Count what waits as this epoch's: returns its ids, in order, which are no candidates again."""
        skips_waiting = self._runner.skips_waiting
        self._began = self._counts()
        self._starts_empty, self.drains = self.queue.empty, False
        self._keeps_everything = self._starts_empty or skips_waiting
        self._num_carried = self._num_passed = 0
        if self._starts_empty or not skips_waiting:
            return _NO_IDS
        ids = torch.cat(self.team.ranks.gather(self.queue.waiting_ids()))
        self._num_carried = len(ids)
        if self._runner.unbiased:
            self.queue.add_weight(1.0)  # the expected weight of the draw that they miss
        rising: Tensor = torch.unique_consecutive(ids.sort().values)
        return rising

    def step(self) -> bool:
        """Move one candidate batch from the user's loader into the queue. False when the epoch is over."""
        runner, loaded = self._runner, self._loading.take()
        phase = self._stats.switch("selecting")
        round_ = self.team.meet(self._brought(loaded))
        self._has_offered = self._has_offered or any(round_.offered)
        if round_.is_over:
            self._finish(round_)
            self._stats.switch(phase)
            return False
        if loaded is None:
            loaded = Loaded.nothing(batch_idx=self._round)
        self._round += 1
        columns = self._columns(loaded.candidates, round_)
        choice = self._choose(loaded, round_)
        self._queue_up(loaded, columns, choice, round_)
        self._record(loaded, choice, decided=not (self._in_training and round_.on))
        self.fraction = round_.fraction
        self._stats.switch(phase)
        if runner.scorer.works_ahead:
            self._submit_next(loaded.batch_idx + 1)
        if self._round % _DELIVER_EVERY == 0:
            self._deliver()
        return True

    def _brought(self, loaded: Loaded | None) -> Brought:
        """What this rank brings to the next round."""
        runner, epoch = self._runner, self.epoch
        if loaded is None:  # the epoch may be over: ask without an effect on a schedule that counts batches
            tail, num_waiting = self._loading.source.tail
            on = self.team.size > 1 and runner.expects_on(epoch, self.fraction, self._round)
            return Brought(-1, len(tail) - num_waiting, 0, 1.0, on, False)
        on = runner.is_on(epoch, self.fraction, loaded.batch_idx)
        probing = not on and runner.wants_scores(epoch, self.fraction, loaded.batch_idx)
        chunk, size = loaded.chunk, loaded.candidates.size
        if chunk is None:
            return Brought(size, size, -1, loaded.fraction, on, probing)
        num_undecided = -1 if chunk.decided is None else size - int(chunk.decided.sum())
        return Brought(size, chunk.offered.numel() - chunk.num_waiting, num_undecided, loaded.fraction, on, probing)

    def _columns(self, candidates: Candidates, round_: Round) -> list[Column]:
        """The candidates as columns of the queue; an error if they could not share a training batch with others."""
        if self.queue.batch_size is None:
            self.queue.set_batch_size(self._training_size(max(round_.sizes)))
        columns = self.queue.columns_of(candidates.data, candidates.size)
        if columns and (problem := self._differing(columns)) is not None:
            if self._mixes(candidates.size):
                raise problem
            self._differing.stop()
        return columns

    def _choose(self, loaded: Loaded, round_: Round) -> Choice:
        """Which of the loaded candidates to train on."""
        candidates, runner = loaded.candidates, self._runner
        if self._in_training:
            return Choice(_to_decide_in_training(loaded) if round_.on else _known(loaded), round_.sizes, keeps_all=True)
        if not any(round_.undecided):
            runner.look_on(loaded, probing=round_.probing, epoch=self.epoch)
            return Choice(_known(loaded), round_.sizes, keeps_all=True)
        rows = None
        if round_.undecided[self.team.rank] < candidates.size:
            assert loaded.chunk is not None and loaded.chunk.decided is not None
            rows = (~loaded.chunk.decided).nonzero().flatten()
            candidates = self._rows(candidates, rows)
        scores = runner.score(candidates, self.epoch)
        pooled = [scores]
        if self.team.pools:
            receive = self.team.start_pooling(scores, round_.undecided)
            self._load_ahead()  # while scores are on their way
            pooled = receive()
        choice = runner.select(scores, candidates.ids, pooled, round_.undecided)
        return choice if round_.undecided == round_.sizes else _merged(choice, loaded, rows, round_)

    def _queue_up(self, loaded: Loaded, columns: list[Column], choice: Choice, round_: Round) -> None:
        """Queue what was chosen; as a batch of its own as long as the epoch is that of plain training."""
        keeps_all = choice.keeps_all and choice.counts == round_.offered
        self._keeps_everything = self._keeps_everything and keeps_all
        ids, same_sizes = loaded.candidates.ids, min(round_.sizes) == max(round_.sizes)
        if self._keeps_everything and self._starts_empty and self._passes_batches and same_sizes and columns:
            self.queue.add_whole(columns, choice.selection, ids)
        else:
            self.queue.add(columns, choice.selection, ids, choice.counts, keeps_all=choice.keeps_all)

    def _record(self, loaded: Loaded, choice: Choice, *, decided: bool) -> None:
        """Tell the ledger and the statistics what was offered and selected."""
        ids, num_loaded, chunk = loaded.candidates.ids, loaded.candidates.size, loaded.chunk
        num_offered = num_loaded
        if chunk is not None:
            num_offered = chunk.offered.numel()
            self._num_passed += chunk.num_waiting
            self._runner.ledger.count_offered(chunk.offered)
        if ids is not None and decided:
            positions = choice.selection.positions
            keeps_all = choice.keeps_all and positions.numel() == num_loaded
            selected = ids if keeps_all else ids.index_select(0, positions)
            self._runner.ledger.record_selection(ids, choice.selection.probabilities, selected)
        self._stats.offered += num_offered
        self._stats.skipped_before_loading += num_offered - num_loaded
        self._stats.queued = len(self.queue)

    def _finish(self, round_: Round) -> None:
        """All candidates of the epoch have been offered."""
        tail, num_waiting = self._loading.source.tail
        if len(tail):
            self._runner.ledger.count_offered(tail)
            self._stats.offered += len(tail)
            self._stats.skipped_before_loading += len(tail)
            self._num_passed += num_waiting
        self._loading.source.drop_tail()
        if any(round_.offered):
            self._keeps_everything = False
        self.fraction = 1.0
        self.drains = self._keeps_everything and (self._starts_empty or self._all_passed())
        if self.drains or self.epoch + 1 == self._num_epochs:
            self.queue.even_out()
        else:
            self.queue.fill_batches()
        self._stats.queued = len(self.queue)

    def _all_passed(self) -> bool:
        """Whether all examples that waited when the epoch began were among its candidates."""
        return sum(passed for (passed,) in self.team.ranks.share([self._num_passed])) >= self._num_carried

    def end(self) -> None:
        """The epoch is over, or its rest is left behind."""
        self._loading.drop_ahead()
        self._runner.submit(None)  # no thread may be at work when a DataLoader forks its workers
        self.epoch += 1
        self.fraction = 0.0
        self._round = 0
        self._deliver()

    def reopen(self) -> None:
        """The epoch that has just ended goes on: its last batch was given out and has come back."""
        self.epoch -= 1
        self.fraction = 1.0

    def release(self) -> None:
        """Nobody takes candidates for now: end the DataLoader's workers, but for persistent ones."""
        self._loading.release()

    def _deliver(self) -> None:
        if len(self._runner.ledger):
            self._runner.ledger.deliver()

    # ---- ahead of training

    @property
    def _is_plain(self) -> bool:
        """Whether the epoch so far is that of plain training."""
        return self._keeps_everything and self._starts_empty

    def _load_ahead(self) -> Loaded | None:
        # Plain training loads a batch after the step before it, and augmentation may draw from the same random state
        # as dropout: as long as everything is kept, so do we, to the bit.
        return None if self._is_plain else self._loading.look_ahead()

    def _submit_next(self, batch_idx: int) -> None:
        """Have the next candidates scored while these are trained on."""
        if not self._is_plain and self._runner.expects_on(self.epoch, self.fraction, batch_idx):
            self._runner.submit(self._loading.look_ahead())

    def resubmit(self) -> None:
        """After a resume: candidates that were loaded ahead are to be scored again."""
        self._runner.submit(self._loading.ahead)

    # ---- details

    def _mixes(self, num_candidates: int) -> bool:
        """Whether examples of different candidate batches come to share a training batch; found out by trying."""
        if self._runner.schedule.never_on or self._in_training:
            return False
        batch_size = self.queue.batch_size
        assert batch_size is not None
        counts = self._runner.trial_counts(num_candidates)
        return any(
            count % batch_size != 0 and not (count == num_candidates and self._passes_batches) for count in counts
        )

    def _rows(self, candidates: Candidates, rows: Tensor) -> Candidates:
        """Some of the candidates, in order."""
        layout = self.queue.layout
        assert layout is not None
        columns = [
            column[rows.to(column.device)] if isinstance(column, Tensor) else [column[i] for i in rows.tolist()]
            for column in layout.columns(candidates.data, candidates.size)
        ]
        ids = candidates.ids[rows] if candidates.ids is not None else None
        return Candidates(layout.batch(columns), ids, len(rows))

    def _counts(self) -> dict[str, int]:
        stats = self._stats
        return {"offered": stats.offered, "selected": stats.trained + stats.queued, "batches": stats.batches}

    def note_silence(self) -> None:
        """Say why, if the epoch gave out no batch: the first time, and then every tenth."""
        now = self._counts()
        if now["batches"] > self._began["batches"]:
            return
        self._num_silent += 1
        if self._num_silent % 10 != 1 or not self.team.speaks:
            return
        _logger.warning(
            "an epoch gave out no batch: %d of %d candidates were selected, and %d selected examples wait for a batch "
            "of %s to fill. Use a smaller batch_size= or a higher selectivity",
            now["selected"] - self._began["selected"],
            now["offered"] - self._began["offered"],
            self._stats.queued,
            self.queue.batch_size,
        )

    def move(self, device: torch.device) -> None:
        """Candidates come to this device from now on, and those that wait go there."""
        self._loading.move(device)
        self.queue.move(device)

    @property
    def transform(self) -> Any:
        """The user's, of candidate batches."""
        return self._loading.transform

    def parts(self) -> list[object]:
        """What a state is loaded into."""
        return [self, self.queue, self._loading, self._loading.source]

    def state_dict(self, *, in_epoch: bool) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "fraction": self.fraction,
            "keeps_everything": self._keeps_everything,
            "carried": [self._starts_empty, self._num_carried, self._num_passed],
            "drains": self.drains,
            "began": self._began,
            "silent": self._num_silent,
            "round": self._round,
            "batch_size": self.queue.batch_size,
            "queue": self.queue.state_dict(),
            **self._loading.state_dict(in_epoch=in_epoch, layout=self.queue.layout),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["batch_size"] is not None:
            self.queue.set_batch_size(state["batch_size"])
            self.queue.load_state_dict(state["queue"])
        self._loading.load_state_dict(state, self.queue.layout)
        self.epoch, self.fraction = state["epoch"], state["fraction"]
        self._keeps_everything, self.drains = state["keeps_everything"], state["drains"]
        self._starts_empty, self._num_carried, self._num_passed = state["carried"]
        self._began, self._num_silent, self._round = dict(state["began"]), state["silent"], state["round"]
        self._has_offered = state["round"] > 0 or state["epoch"] > 0


def _known(loaded: Loaded) -> Selection:
    """All candidates, as it was decided about them before they were loaded; those that were not, with weight 1."""
    chunk, size = loaded.chunk, loaded.candidates.size
    if chunk is not None and chunk.decided is not None:
        assert chunk.weights is not None and chunk.probabilities is not None
        return Selection(torch.arange(size), chunk.weights, chunk.probabilities)
    return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))


def _to_decide_in_training(loaded: Loaded) -> Selection:
    """All candidates, with chances that are not known yet: `loader.loss` selects."""
    size = loaded.candidates.size
    return Selection(torch.arange(size), torch.ones(size), torch.full((size,), torch.nan, dtype=torch.float64))


def _merged(choice: Choice, loaded: Loaded, rows: Tensor | None, round_: Round) -> Choice:
    """All that were decided before loading, and those chosen now among the rest, in their common order.

    rows: of this rank's candidates, those that were chosen among; None: all.
    """
    parts = zip(round_.sizes, round_.undecided, choice.counts, strict=True)
    counts = [size - undecided + chosen for size, undecided, chosen in parts]
    if rows is None:
        return Choice(choice.selection, counts, choice.keeps_all)
    chosen, known = choice.selection, _known(loaded)
    weights, probabilities = known.weights.clone(), known.probabilities.clone()
    keep = torch.ones(len(weights), dtype=torch.bool)
    keep[rows] = False
    keep[rows[chosen.positions]] = True
    weights[rows[chosen.positions]] = chosen.weights
    probabilities[rows] = chosen.probabilities
    positions = keep.nonzero().flatten()
    return Choice(Selection(positions, weights[positions], probabilities), counts, choice.keeps_all)
