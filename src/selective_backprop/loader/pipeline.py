"""The pipeline: candidates are loaded, scored, selected and queued. `Pipeline.step` does this for one batch.

# N = candidates, B = training batch
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Column, take_rows
from selective_backprop.batches.padding import Pad, PadToLongest, ShapeCheck
from selective_backprop.distributed.team import Choice, Contribution, Meeting, Team
from selective_backprop.loader.loading import Loaded, Loading
from selective_backprop.loader.queue import Queue
from selective_backprop.loader.runner import Runner
from selective_backprop.loader.stats import Stats
from selective_backprop.loader.token_queue import TokenQueue
from selective_backprop.types import Candidates, Selection

_logger = logging.getLogger(__name__)

_NO_IDS = torch.empty(0, dtype=torch.int64)
_DELIVER_EVERY = 64  # rounds between two exchanges of ledger entries among ranks


class Pipeline:
    """Moves candidates from the user's loader into the queue, from which training batches are taken.

    An epoch is `begin`, then `step` until it returns False, then `end`. Each step is a round: every rank brings one
    candidate batch, or none if it has run out. A process that trains alone is a team of one rank.

    Args:
        loading: loads the candidates.
        runner: scores candidates and selects among them.
        stats: counts what happens.
        team: the ranks that train together.
        num_batches: candidate batches per epoch on the rank that has the most; None if not known.
        device: where the candidates are.
        batch_size: B as the user asked for it; None for the size of the candidate batches.
        pad: gives examples of different lengths the same shape.
        batch_tokens: tokens in a training batch, instead of B examples; None for batches of B.
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
        batch_tokens: int | None,
        num_epochs: int | None,
    ) -> None:
        self._loading, self._runner, self._stats, self.team = loading, runner, stats, team
        self._num_epochs = num_epochs
        source, scale = loading.source, runner.method.batch_scale
        # Whether a candidate batch may become a training batch unchanged, as long as every candidate is kept.
        self._passes_batches = batch_size is None and batch_tokens is None and scale == 1
        self._by_tokens = batch_tokens is not None
        self.epoch = 0
        self.fraction = 0.0
        """Fraction of this epoch's candidates offered so far."""
        self.drains = False
        """Whether this epoch gives out everything that waits, with a smaller last batch, as plain training does."""
        self.num_batches = num_batches
        """Candidate batches per epoch on the rank that has the most; None if not known."""
        self.num_candidates = source.num_candidates
        """The most candidates that an epoch can have on one rank; None if not known."""
        self._keeps_everything = True  # whether every candidate of this epoch so far was kept, on all ranks
        self._starts_empty = True  # whether the queue was empty when this epoch began
        self._num_carried = 0  # examples on all ranks that waited when the epoch began and are not offered in it
        self._num_passed = 0  # how many of those this rank's sampler has come to so far
        self._round = 0  # rounds of this epoch so far
        self._has_offered = False  # whether any rank has had candidates
        self._began = self._counts()  # counts of examples and batches when this epoch began
        self._num_silent = 0  # epochs that gave out no batch
        self._same_each_epoch = source.offers_the_same_each_epoch
        self._most_waiting: int | None = None  # how many examples can wait on one rank, if none waits twice
        self._find_size_limits()
        size = batch_size or source.batch_size
        if batch_tokens is not None:
            assert isinstance(pad, PadToLongest)
            self.queue: Queue = TokenQueue(batch_tokens, pad, device)
        else:
            self.queue = Queue(self._training_size(size) if size is not None else None, pad, team.ranks, device)
        self._shapes_differ = ShapeCheck()
        if pad is not None:
            self._shapes_differ.stop()

    # ---- an epoch

    def begin(self, *, resumed: bool) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        waiting = _NO_IDS if resumed else self._carry_over()
        plan = self._runner.plan(
            self.epoch,
            self.num_batches,
            waiting=waiting,
            num_waiting=self._num_carried,
            batch_size=None if self._by_tokens else self.queue.batch_size,
        )
        self._loading.begin(self.epoch, plan, waiting)

    def _carry_over(self) -> Tensor:
        """Note which examples wait as the epoch begins. Returns the rising ids that it must not offer again."""
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
            # These examples are left out of this epoch's draw, whose weights are 1 in expectation.
            self.queue.add_weight(1.0)
        rising: Tensor = torch.unique_consecutive(ids.sort().values)
        return rising

    def step(self) -> bool:
        """Move one candidate batch from the user's loader into the queue. False when the epoch is over."""
        loaded = self._loading.take()  # load; None if this rank has no candidates left
        phase = self._stats.switch("selecting")
        meeting = self.team.meet(self._contribution(loaded))  # learn how many candidates every rank has
        self._has_offered = self._has_offered or any(meeting.offered)
        if meeting.is_over:
            self._finish(meeting)
            self._stats.switch(phase)
            return False
        if loaded is None:
            loaded = Loaded.nothing(batch_idx=self._round)
        self._round += 1
        columns = self._columns(loaded.candidates, meeting)
        choice = self._score_and_select(loaded, meeting)
        self._enqueue(loaded, columns, choice, meeting)
        self._record(loaded, choice)
        self.fraction = meeting.fraction
        self._stats.switch(phase)
        if self._runner.scorer.works_ahead:
            self._submit_next(loaded.batch_idx + 1)
        if self._round % _DELIVER_EVERY == 0:
            self._deliver()
        return True

    def _contribution(self, loaded: Loaded | None) -> Contribution:
        """Describe what this rank brings to the next round."""
        runner, epoch = self._runner, self.epoch
        if loaded is None:
            tail, num_waiting = self._loading.source.tail
            on = self.team.size > 1 and runner.is_on(epoch, self.fraction, self._round)
            return Contribution(-1, len(tail) - num_waiting, 0, 1.0, on, False)
        runner.advance(epoch, self.fraction, loaded.batch_idx)
        on = runner.is_on(epoch, self.fraction, loaded.batch_idx)
        probing = not on and runner.wants_scores(epoch, self.fraction, loaded.batch_idx)
        chunk, size = loaded.chunk, loaded.candidates.size
        if chunk is None:
            return Contribution(size, size, -1, loaded.fraction, on, probing)
        num_undecided = -1 if chunk.decided is None else size - int(chunk.decided.sum())
        num_offered = chunk.offered.numel() - chunk.num_waiting
        return Contribution(size, num_offered, num_undecided, loaded.fraction, on, probing)

    def _columns(self, candidates: Candidates, meeting: Meeting) -> list[Column]:
        """Split the candidates into the queue's columns. Raises if they could not share a training batch."""
        if self.queue.batch_size is None:
            self.queue.set_batch_size(self._training_size(max(meeting.sizes)))
        columns = self.queue.columns_of(candidates.data, candidates.size)
        if columns and (problem := self._shapes_differ(columns)) is not None:
            if self._mixes(candidates.size):
                raise problem
            self._shapes_differ.stop()
        return columns

    def _score_and_select(self, loaded: Loaded, meeting: Meeting) -> Choice:
        """Score the candidates that are still undecided, on all ranks, and select which to train on."""
        candidates, runner = loaded.candidates, self._runner
        if not any(meeting.undecided):
            runner.watch(loaded, probing=meeting.probing, epoch=self.epoch)
            return Choice(_keep_all(loaded), meeting.sizes, keeps_all=True)
        rows = None
        if meeting.undecided[self.team.rank] < candidates.size:
            assert loaded.chunk is not None and loaded.chunk.decided is not None
            rows = (~loaded.chunk.decided).nonzero().flatten()
            candidates = self._rows(candidates, rows)
        scores = runner.score(candidates, self.epoch)
        pooled = [scores]
        if self.team.pools:
            receive = self.team.start_pooling(scores, meeting.undecided)
            self._load_ahead()  # while the scores travel between ranks
            pooled = receive()
        choice = runner.select(scores, candidates, pooled, meeting.undecided)
        return choice if meeting.undecided == meeting.sizes else _with_decided(choice, loaded, rows, meeting)

    def _enqueue(self, loaded: Loaded, columns: list[Column], choice: Choice, meeting: Meeting) -> None:
        """Queue the selected candidates; as a batch of their own while the epoch is like plain training."""
        keeps_all = choice.keeps_all and choice.counts == meeting.offered
        self._keeps_everything = self._keeps_everything and keeps_all
        ids, same_sizes = loaded.candidates.ids, min(meeting.sizes) == max(meeting.sizes)
        if self._keeps_everything and self._starts_empty and self._passes_batches and same_sizes and columns:
            self.queue.add_whole(columns, choice.selection, ids)
        else:
            self.queue.add(columns, choice.selection, ids, choice.counts, keeps_all=choice.keeps_all)

    def _record(self, loaded: Loaded, choice: Choice) -> None:
        """Write to the ledger and the statistics which candidates were offered and which were selected."""
        ids, num_loaded, chunk = loaded.candidates.ids, loaded.candidates.size, loaded.chunk
        num_offered = num_loaded
        if chunk is not None:
            num_offered = chunk.offered.numel()
            self._num_passed += chunk.num_waiting
            self._runner.ledger.count_offered(chunk.offered)
        if ids is not None:
            positions = choice.selection.positions
            keeps_all = choice.keeps_all and positions.numel() == num_loaded
            selected = ids if keeps_all else ids.index_select(0, positions)
            self._runner.ledger.record_selection(ids, choice.selection.probabilities, selected)
        self._stats.offered += num_offered
        self._stats.skipped_before_loading += num_offered - num_loaded
        self._stats.queued = len(self.queue)

    def _finish(self, meeting: Meeting) -> None:
        """Close the epoch's books: no rank has candidates left."""
        tail, num_waiting = self._loading.source.tail
        if len(tail):
            self._runner.ledger.count_offered(tail)
            self._stats.offered += len(tail)
            self._stats.skipped_before_loading += len(tail)
            self._num_passed += num_waiting
        self._loading.source.drop_tail()
        if any(meeting.offered):
            self._keeps_everything = False
        self.fraction = 1.0
        # Batches by tokens end with what is left in every epoch: it would wait long for others of its length.
        self.drains = self._by_tokens or (self._keeps_everything and (self._starts_empty or self._all_passed()))
        if self.drains or self.epoch + 1 == self._num_epochs:
            self.queue.even_out()
        else:
            self.queue.fill_batches()
        self._stats.queued = len(self.queue)

    def _all_passed(self) -> bool:
        """Whether the epoch came to every example that waited when it began."""
        return sum(passed for (passed,) in self.team.ranks.share([self._num_passed])) >= self._num_carried

    def end(self) -> None:
        """End the epoch. Candidates that have not been offered are dropped."""
        self._loading.drop_ahead()
        self._runner.submit(None)  # no thread may be at work when a DataLoader forks its workers
        self.epoch += 1
        self.fraction = 0.0
        self._round = 0
        self._deliver()

    def _deliver(self) -> None:
        """Send ledger entries to the ranks that own their rows."""
        if len(self._runner.ledger):
            self._runner.ledger.deliver()

    def reopen(self) -> None:
        """Go back into the epoch that has just ended, because its last batch was put back into the queue."""
        self.epoch -= 1
        self.fraction = 1.0

    def release(self) -> None:
        """End the DataLoader's workers, except persistent ones: nobody takes candidates for now."""
        self._loading.release()

    # ---- ahead of training

    @property
    def _is_plain(self) -> bool:
        """Whether the epoch so far is the same as plain training."""
        return self._keeps_everything and self._starts_empty

    def _load_ahead(self) -> Loaded | None:
        # Plain training loads a batch after the training step before it, and augmentation may draw from the same random
        # state as dropout. To equal plain training bit for bit, nothing is loaded ahead while everything is kept.
        return None if self._is_plain else self._loading.look_ahead()

    def _submit_next(self, batch_idx: int) -> None:
        """Let the scorer begin with the next candidates while the current ones are trained on."""
        if not self._is_plain and self._runner.is_on(self.epoch, self.fraction, batch_idx):
            self._runner.submit(self._loading.look_ahead())

    def resubmit(self) -> None:
        """Score candidates that were loaded ahead again, after a state was loaded."""
        self._runner.submit(self._loading.ahead)

    # ---- sizes

    def _find_size_limits(self) -> None:
        """Find out how many candidates all ranks have and how many examples can wait. All ranks call this."""
        source, runner = self._loading.source, self._runner
        answers = self.team.ranks.share([source.num_candidates or 0, self._same_each_epoch])
        counts = [int(count) for count, _ in answers]
        self.num_candidates = max(counts) if all(counts) else None
        self._same_each_epoch = all(same for _, same in answers)
        if runner.skips_waiting and not runner.schedule.never_on:
            examples = source.num_kept or 0
            most = (min(examples, sum(counts)) if all(counts) else examples) // len(counts)
            if runner.scorer.needs.selection_pass and runner.method.batch_scale == 1:
                most //= 2  # a batch of nearly all examples would wait long for the last few to be selected
            self._most_waiting = max(1, most)

    def _training_size(self, batch_size: int) -> int:
        """Size of a training batch if the user, or else the loader, asks for this batch size."""
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
        """Whether an epoch can give out examples left from the epoch before, on top of all its own candidates."""
        runner = self._runner
        if runner.schedule.never_on:
            return False  # nothing ever waits
        return not (runner.skips_waiting and self._same_each_epoch)

    @property
    def never_offered(self) -> bool:
        """Whether no rank has had a single candidate so far."""
        return self._stats.offered == 0 and not self._has_offered

    def _mixes(self, num_candidates: int) -> bool:
        """Whether examples of different candidate batches may share a training batch, found out by trial selections."""
        if self._runner.schedule.never_on:
            return False
        batch_size = self.queue.batch_size
        assert batch_size is not None
        counts = self._runner.trial_counts(num_candidates)
        return any(
            count % batch_size != 0 and not (count == num_candidates and self._passes_batches) for count in counts
        )

    def _rows(self, candidates: Candidates, rows: Tensor) -> Candidates:
        """Return only the candidates in these rows."""
        layout = self.queue.layout
        assert layout is not None
        columns = [take_rows(column, rows) for column in layout.columns(candidates.data, candidates.size)]
        ids = candidates.ids[rows] if candidates.ids is not None else None
        return Candidates(layout.batch(columns), ids, len(rows))

    def _counts(self) -> dict[str, int]:
        stats = self._stats
        return {"offered": stats.offered, "selected": stats.trained + stats.queued, "batches": stats.batches}

    def note_silence(self) -> None:
        """Log why an epoch gave out no batch: the first time, and then every tenth time."""
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

    # ---- moving and saving

    def move(self, device: torch.device) -> None:
        """Move waiting examples to this device, and load candidates there from now on."""
        self._loading.move(device)
        self.queue.move(device)

    @property
    def transform(self) -> Any:
        """The user's transform of candidate batches."""
        return self._loading.transform

    def parts(self) -> list[object]:
        """The objects that `load_state_dict` writes to."""
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


def _keep_all(loaded: Loaded) -> Selection:
    """Select all loaded candidates, with the weights and probabilities of the plan. Without a plan these are 1."""
    chunk, size = loaded.chunk, loaded.candidates.size
    if chunk is not None and chunk.decided is not None:
        assert chunk.weights is not None and chunk.probabilities is not None
        return Selection(torch.arange(size), chunk.weights, chunk.probabilities)
    return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))


def _with_decided(choice: Choice, loaded: Loaded, rows: Tensor | None, meeting: Meeting) -> Choice:
    """Add the candidates that were selected before loading to those that were selected now, in loading order.

    rows: this rank's candidates that were scored and selected from now; None if all of them were.
    """
    parts = zip(meeting.sizes, meeting.undecided, choice.counts, strict=True)
    counts = [size - undecided + chosen for size, undecided, chosen in parts]
    if rows is None:
        return Choice(choice.selection, counts, choice.keeps_all)
    chosen, planned = choice.selection, _keep_all(loaded)
    weights, probabilities = planned.weights.clone(), planned.probabilities.clone()
    keep = torch.ones(len(weights), dtype=torch.bool)
    keep[rows] = False
    keep[rows[chosen.positions]] = True
    weights[rows[chosen.positions]] = chosen.weights
    probabilities[rows] = chosen.probabilities
    positions = keep.nonzero().flatten()
    return Choice(Selection(positions, weights[positions], probabilities), counts, choice.keeps_all)
