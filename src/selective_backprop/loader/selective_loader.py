"""SelectiveLoader: the user's loader in, full-size batches of selected examples out.

# N = candidates, B = training batch
"""

from __future__ import annotations

import inspect
import logging
import math
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.batches.layout import Layout
from selective_backprop.batches.padding import Pad
from selective_backprop.description import describe
from selective_backprop.distributed.agreement import together
from selective_backprop.distributed.ledger import AnyLedger, make_ledger
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.distributed.team import Scope, Team
from selective_backprop.inference import device_of
from selective_backprop.loader.checks import (
    STATE_VERSION,
    agree,
    check_arguments,
    check_numbers,
    check_ranks,
    check_source,
    check_state,
    to_agree_on,
)
from selective_backprop.loader.feedback import Feedback
from selective_backprop.loader.forwarding import LoaderAttributes
from selective_backprop.loader.index_stream import drops_last
from selective_backprop.loader.loading import Loading
from selective_backprop.loader.pipeline import Pipeline
from selective_backprop.loader.runner import Runner
from selective_backprop.loader.source import Source
from selective_backprop.loader.stats import Stats
from selective_backprop.loader.training_loss import ReusedForward, TrainingLoss
from selective_backprop.loader.undoing import unchanged_on_error
from selective_backprop.losses import PerExampleLoss, Reducer, default_forward
from selective_backprop.method import Method
from selective_backprop.schedules import Schedule
from selective_backprop.types import Batch, Forward, Policy, Scorer, Task

_logger = logging.getLogger(__name__)


class _Look:
    """Whether the caller of an iteration has only looked at its first batch."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.batch: Batch | None = None
        """The first batch of the iteration, until the caller has trained on it."""
        self.trained = False
        self.put_back = False
        """Whether a batch was put back, so that the epoch goes on where it is."""
        self._marks: list[Any] = []

    def start(self) -> None:
        """An iteration begins; what `flush` gave out before it was none of its batches."""
        self.batch, self.trained = None, False

    def begin(self, batch: Batch) -> None:
        if self.batch is None and not self.trained:
            self.batch, self._marks = batch, self._written()

    def end(self) -> Batch | None:
        """The first batch, if that is where the iteration ends: no loss computed, no gradient or weight written."""
        batch, self.batch = self.batch, None
        return batch if not self.trained and self._marks == self._written() else None

    def _written(self) -> list[Any]:
        return [
            (p._version, None if p.grad is None else (id(p.grad), p.grad._version)) for p in self._model.parameters()
        ]


class SelectiveLoader(LoaderAttributes):
    """Iterates over the user's loader and gives out full batches of the examples that the method selects.

    Args:
        loader: the user's DataLoader. Any iterable of batches will do for methods that need no ids.
        model: the model being trained, as it is (also wrapped by DDP, FSDP or torch.compile).
        loss_fn: an nn loss module, a function that takes `reduction=`, or a callable that returns one loss per
            example.
        method: how to select, for example `selective_backprop(selectivity=1/3)`.
        batch_size: examples in a training batch; the loader's own batch size if not given. Candidate batches
            may be larger than training batches.
        forward: how a batch goes through the model: `forward(model, batch) -> (outputs, targets)`, the arguments
            of loss_fn. By default `model(inputs), targets` for a pair, and `model(**batch), labels` for a dict,
            where labels is its "labels" entry or, without one, the whole dict.
        transform: called on each candidate batch once it is on the device and before it is scored, such as
            augmentation there: the batch trained on is the one that was scored. If it has a state_dict, that is
            saved with the loader's.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean" of those that
            are not ignored, "sum", "max" or a function, such as `mean_of_largest(8)`.
        pad: for candidate batches whose examples differ in length, such as `pad_to_longest({"input_ids": 0})`:
            makes parts of them the same shape when they are to share a training batch.
        device: where batches are given out; by default where the model's parameters are when an epoch begins.
        num_epochs: length of the run. Needed by methods with a window of training and for `progress`; with it
            the last epoch gives out what is left as one smaller batch, unless the DataLoader has drop_last or a
            single example is left, on which BatchNorm could not be trained.
        seed: of the loader's own generator. Global random state is never touched.
        scope: with several ranks (torch.distributed), percentiles are among the candidates of all of them, "global", or
            of each by itself, "local". Every rank gives out as many batches as the others, all of them full.
        total_batches: candidate batches of an epoch, where the loader has no length. `len` and `progress` follow from
            it; if it is not quite right, `progress` still ends at 1, and the log says how many there were.

    No batch holds an example twice, unless the method draws with replacement, the sampler offers an example twice in an
    epoch, or the loader has no ids. What waits in the queue when an epoch begins is given out in that epoch, and is
    skipped where it is offered again.

    Without num_epochs, up to B - 1 selected examples may still wait at the end of the run: `flush()` gives them.
    As long as an epoch keeps every candidate, the user's own batches pass through unchanged. Other attributes of the
    loader can be read here: `loader.dataset`, `loader.sampler.set_epoch(epoch)`.
    """

    puts_back = True
    """Whether a batch that was only looked at comes again."""

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        method: Method,
        *,
        batch_size: int | None = None,
        forward: Forward | None = None,
        transform: Callable[[Any], Any] | None = None,
        reducer: str | Reducer | None = None,
        pad: Pad | None = None,
        device: torch.device | str | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        scope: Scope = "global",
        total_batches: int | None = None,
    ) -> None:
        ranks = current_ranks()
        with together(ranks, "could not start"):  # an error on one rank is an error on all: none waits for it
            check_arguments(loader, model, method, batch_size=batch_size, num_epochs=num_epochs)
            check_numbers(seed=seed, scope=scope, total_batches=total_batches, loader=loader)
            self._source = Source(loader, method.keep, total_batches)
            check_source(self._source, method, ranks)
            check_ranks(model, method, ranks)
            self._loss = PerExampleLoss(loss_fn, reducer)
            self._follows_model = device is None
            self._device = torch.device(device) if device is not None else device_of(model)
            options: dict[str, Any] = {"num_epochs": num_epochs, "seed": seed, "scope": scope, "forward": forward}
            options |= {"transform": transform, "reducer": reducer, "pad": pad}
            alike = to_agree_on(self._source, method, batch_size=batch_size, **options) if ranks.size > 1 else {}
        self.model = model
        self.method = method
        self.num_epochs = num_epochs
        self.team = Team(ranks, scope)
        """The ranks that train together; this process alone is a team of one."""
        self.stats = Stats()
        num_batches = agree(self.team, self._source, alike)
        self.ledger: AnyLedger = make_ledger(self._source.num_examples or 0, method.scorer.needs.past_scores, ranks)
        """What is known of every example; empty where the loader has no ids. With several ranks each has a part."""
        task = Task(model, forward or default_forward, self._loss)
        self._runner = Runner(method, task, self.ledger, self.stats, num_epochs=num_epochs, seed=seed, team=self.team)
        self._pipeline = Pipeline(
            Loading(self._source, self._device, transform, self.stats),
            self._runner,
            self.stats,
            team=self.team,
            num_batches=num_batches,
            device=self._device,
            batch_size=batch_size,
            pad=pad,
            num_epochs=num_epochs,
        )
        self.queue = self._pipeline.queue
        """Selected examples that wait for their batch to fill. To be read, not changed."""
        self._feedback = Feedback(self._runner, self._device)
        self._training_loss = TrainingLoss(self._loss, self._runner)
        if method.scorer.needs.training_pass:
            self._training_loss = ReusedForward(self._loss, self._runner, model, self.stats)
        self._in_epoch = self._resumed = False
        self._batch: Batch | None = None
        self._step_under_way = False
        self._look = _Look(model)
        self._iteration: weakref.ref[Generator[Any]] | None = None  # the one that gives out batches
        self._warned_beyond_end = False

    # ---- what users read

    def __repr__(self) -> str:
        batches, size = self._pipeline.num_batches, self._source.batch_size
        count = "candidate batches" if batches is None else f"{batches:,} candidate batches"
        sizes = "" if size is None else f" of {size}"
        training = f", training batches of {self.batch_size}" if self.batch_size not in (None, size) else ""
        return f"{type(self).__name__}({self.method!r}, {count}{sizes}{training}, epoch {self.epoch})"

    def __len__(self) -> int:
        """The most batches an epoch can give, reached when everything is selected; selectivity x this is usual.

        An upper bound, because frameworks stop an epoch after len() batches. Where an epoch may not offer the examples
        that wait from the one before (no ids, samplers with replacement or of your own), it counts one batch more for
        them, with num_epochs. For a learning rate schedule use `step_by_progress`.
        """
        batches, candidates = self._pipeline.num_batches, self._pipeline.num_candidates
        if batches is None:
            raise TypeError("the loader inside has no length")
        if self.batch_size and candidates:
            batches = math.ceil(candidates / self.batch_size)
        # What waited when the last epoch began may come on top of it.
        return batches + (self.num_epochs is not None and self._pipeline.may_carry_over and not self._drop_last)

    @property
    def epoch(self) -> int:
        """Epochs completed; during one, its number from 0."""
        return self._pipeline.epoch

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is under way: begun, and not all of its candidates offered."""
        return self._in_epoch

    @property
    def layout(self) -> Layout | None:
        """Column layout of the batches; None before the first one was loaded."""
        return self.queue.layout

    @property
    def batch_size(self) -> int | None:
        """Examples in a full training batch; None until the first batch where the loader does not say it."""
        return self.queue.batch_size

    @property
    def policy(self) -> Policy:
        """The policy at work, with its state."""
        return self._runner.policy

    @property
    def scorer(self) -> Scorer:
        """The scorer at work, with its state."""
        return self._runner.scorer

    @property
    def schedule(self) -> Schedule:
        """The schedule at work, with its state, such as the tau of `kath18`."""
        return self._runner.schedule

    @property
    def epochs_done(self) -> float:
        """Epochs of candidates offered so far, with the part of the current one."""
        return self.epoch + self._pipeline.fraction

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered so far, from 0 to 1: what a schedule should go by."""
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveLoader")
        if self._pipeline.num_batches is None:
            raise ValueError(
                "progress within an epoch is not known, because the loader inside has no length: pass total_batches= "
                "to SelectiveLoader, its candidate batches of an epoch"
            )
        return min(1.0, self.epochs_done / self.num_epochs)

    @property
    def batch(self) -> Batch:
        """The batch given out last, with its ids, weights and probabilities."""
        if self._batch is None:
            raise RuntimeError("no batch has been given out yet")
        return self._batch

    def loss(self, outputs: Any, targets: Any, batch: Batch | None = None) -> Tensor:
        """The loss of the batch given out last, with its weights applied; tells the ledger each example's loss.

        Without weights it is loss_fn's own value, to the bit, from one call of loss_fn. If loss_fn is a loss of your
        own with a reduction, that call does not tell the loss of each example. Only methods that select by training
        losses then evaluate it once more, on a copy and with the same random numbers. Return one loss per example to
        spare that. Of `batches()`, say which one it is.
        """
        if batch is None:
            batch = self.batch
            if not self._step_under_way:
                raise RuntimeError(
                    "no training step is under way: loader.loss is for the batch that the loader gave out last, while "
                    "its loop goes on, and would record these losses as that batch's. For other batches, such as "
                    "validation, call your loss function itself"
                )
        self._look.trained = True
        # What is left in the queue is given out when the last epoch has been counted already.
        epoch = self.epoch if self._in_epoch else self.epoch - 1
        weighted = self._feedback.weighted if batch is self._batch else not bool((batch.weights == 1).all())
        weights = batch.weights.to(self._device, non_blocking=True) if weighted else None
        loss, losses, used = self._training_loss(batch, outputs, targets, epoch, weights)
        if used is not batch:
            self._batch, self._feedback.weighted = used, not bool((used.weights == 1).all())
        self._feedback.weights_used = True
        self._feedback.add(batch, losses, epoch)
        return loss

    def call_in_errors(self, *, loss: str, weights: str) -> None:
        """What errors tell users to write instead of `loader.loss(outputs, targets)` and `loader.batch.weights`."""
        self._feedback.loss_call, self._feedback.weights_name = loss, weights

    # ---- iteration

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of the one that was under way when the state was saved.

        One iteration at a time. Leaving it early ends the epoch. Looking at its first batch and leaving without having
        trained on it, as by `next(iter(loader))`, does not: the next iteration begins with that batch.
        """
        iteration = self._iterate(own := [])
        own.append(weakref.ref(iteration))
        return iteration

    def _iterate(self, own: list[weakref.ref[Generator[Any]]]) -> Generator[Any]:
        self._refuse_a_second_iteration()
        self._iteration = own[0]
        self._look.start()
        try:
            yield from self.epoch_batches()
        finally:
            if not sys.is_finalizing():  # torch is being taken apart then, and nobody goes on
                self._leave_iteration()

    def epoch_batches(self) -> Iterator[Any]:
        """What one iteration gives out: an epoch, or the rest of one. A subclass may give out something else.

        It is written with the steps below, which frameworks that count batches use one by one.
        """
        self.begin_epoch()
        yield from self._ready_batches()  # those queued when the state was saved
        while self.offer():
            yield from self._ready_batches()
        # Before the epoch is counted as over, so that a state saved after one of these batches has the others.
        yield from self._ready_batches()
        self.end_epoch()
        if self.ends_with_rest:
            yield from self.flush()

    def _ready_batches(self) -> Iterator[Any]:
        while (batch := self.take()) is not None:
            yield batch.data
            self.end_step()

    def begin_epoch(self) -> None:
        """Start the next epoch, or go on with the one that was under way when the state was saved."""
        if self._in_epoch and not self._resumed:
            self._close_epoch()  # the caller left the last epoch early
        self._follow_device()
        if not self._in_epoch:
            self._warn_beyond_the_end()
            self._feedback.learn()  # of batches that were taken ahead
        looked, self._look.put_back = self._look.put_back, False
        resumed, self._in_epoch, self._resumed = self._in_epoch, True, False
        if not looked:
            self._pipeline.begin(resumed=resumed)

    def offer(self) -> bool:
        """Move the next candidate batch into the queue; False when all candidates of the epoch have been offered."""
        scored = self.stats.scored
        if self._pipeline.step():
            if self.stats.scored > scored:
                self._feedback.learn()  # costs no wait: scoring has just made the device catch up
            return True
        if self._pipeline.never_offered:
            raise ValueError("the loader is empty: it offered no batch in a whole epoch")
        return False

    @property
    def num_ready(self) -> int:
        """Full training batches that wait to be taken."""
        return self.queue.num_ready

    @property
    def num_left(self) -> int:
        """Training batches that can still be taken once the epoch has ended, with a smaller last one."""
        return self.queue.num_ready + (self.ends_with_rest and self.queue.rest > 0)

    @property
    def ends_with_rest(self) -> bool:
        """Whether the epoch just ended ends with what is left, as a smaller batch: `flush` gives it out."""
        if self._pipeline.drains:
            return True  # as plain training does
        # BatchNorm cannot train on a single example, and a long run must not fail on its very last step.
        return self.epoch == self.num_epochs and self.queue.rest > 1 and not self._drop_last

    def take(self, *, rest: bool = False) -> Batch | None:
        """The next full training batch, if one is ready: a training step on it begins.

        rest: where none is, what is left, as a smaller one.
        """
        batch = self.queue.pop()
        if batch is None and rest:
            batch = self.queue.flush()
        if batch is None:
            return None
        self._batch = self._feedback.expect_for(batch)
        self._look.begin(batch)
        self.stats.trained += len(batch)
        self.stats.batches += 1
        self.stats.queued = len(self.queue)
        self._step_under_way = True
        self.stats.switch("training")
        return self._batch

    def end_step(self) -> None:
        """The training step on the batch taken last is over: its losses are learned."""
        if self._step_under_way:
            self._step_under_way = False
            self.stats.switch("")
            self._look.trained = True  # the caller went on to the next batch
            self._feedback.step_is_over()

    def end_epoch(self) -> None:
        """No more candidates are offered in this epoch, whether or not all were."""
        if not self._in_epoch:
            return
        if self._pipeline.fraction == 1.0:
            self._source.note_length()
        self._close_epoch()
        if not self.num_left:
            self._pipeline.note_silence()

    def _close_epoch(self) -> None:
        self._feedback.learn()
        self._runner.share_check.end_epoch(self.epoch)
        self._pipeline.end()
        self._in_epoch = False

    def flush(self) -> Iterator[Any]:
        """Give out what is still queued, as a last batch that may be smaller than the others."""
        self.queue.even_out()
        while (batch := self.take(rest=True)) is not None:
            yield batch.data
            self.end_step()

    def _leave_iteration(self) -> None:
        if self._step_under_way:
            self._step_under_way = False
            self.stats.switch("")
        batch = self._look.end()
        if batch is not None and self.puts_back:
            self._put_back(batch)
        else:
            self._pipeline.release()  # by a break or an error candidates are left, and workers that load them

    def _refuse_a_second_iteration(self) -> None:
        other = self._iteration() if self._iteration is not None else None
        if other is not None and inspect.getgeneratorstate(other) != inspect.GEN_CLOSED:
            raise RuntimeError(
                "another iteration over this loader is still going on, and both would take batches from the same "
                "epoch: finish it, leave its loop, or close its iterator (iterator.close()) before the next one "
                "begins. For two loops at once, make two loaders"
            )

    def _put_back(self, batch: Batch) -> None:
        """The caller has only looked at the epoch's first batch: it comes first when the epoch goes on."""
        self.queue.put_back(batch)
        self.stats.trained -= len(batch)
        self.stats.batches -= 1
        self.stats.queued = len(self.queue)
        if not self._in_epoch:  # it was the last batch, too
            self._pipeline.reopen()
        self._in_epoch = self._resumed = self._look.put_back = True

    def _follow_device(self) -> None:
        """The model may have moved since the last epoch; so does what is queued."""
        if self._follows_model and (device := device_of(self.model)) != self._device:
            self._device = device
            self._pipeline.move(device)
            self._feedback.device = device

    def _warn_beyond_the_end(self) -> None:
        if self.num_epochs is not None and self.epoch >= self.num_epochs and not self._warned_beyond_end:
            self._warned_beyond_end = True
            _logger.warning(
                "epoch %d begins, and the loader was made for num_epochs=%d: progress stays at 1, so a learning rate "
                "by step_by_progress stays where it ended",
                self.epoch + 1,
                self.num_epochs,
            )

    def batches(self) -> Iterator[Batch]:
        """As iterating over the loader, for callers that take batches ahead of training on them.

        Each comes with its ids and weights; `loss` is told which one it is about. Save the state when all that were
        taken have been trained on.
        """
        for _ in self:
            self._feedback.expect_nothing()
            self._look.batch = None  # the caller has it, whatever becomes of this iteration
            assert self._batch is not None
            yield self._batch

    def with_bar(self, bar: Any) -> Iterator[Any]:
        """As iterating over the loader, with a progress bar that goes by candidates and ends with the epoch.

        Args:
            bar: `tqdm()` or anything else with `update(n)` and `close()`. If it has a `total` that is None, that is
                set to the candidate batches of an epoch.

        In one line: `for inputs, targets in loader.with_bar(tqdm()):`. A bar around the loader itself would stop at
        selectivity x 100%, since `len(loader)` is the most that an epoch can give.
        """
        total, shown = self._pipeline.num_batches, 0
        if total is not None and getattr(bar, "total", 0) is None:
            bar.total = total
        epoch = self.epoch
        try:
            for batch in self:
                yield batch
                shown = self._advance(bar, epoch, shown)
            if total is not None:
                self._advance(bar, epoch, shown)
        finally:
            bar.close()

    def _advance(self, bar: Any, epoch: int, shown: int) -> int:
        """Bring the bar to where the epoch is; without a known length it counts training batches."""
        total = self._pipeline.num_batches
        if total is None:
            bar.update(1)
            return shown
        reached = total if self.epoch > epoch else round(self._pipeline.fraction * total)
        bar.update(reached - shown)
        return reached

    @property
    def _drop_last(self) -> bool:
        return drops_last(self._source.user_loader)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: plain data and tensors, loadable with weights_only=True.

        Save it between steps, mid-epoch too. The order of later epochs comes from the DataLoader's generator,
        which is saved too if it has one; without one it comes from torch's global state, which is the caller's
        to save, as for any exact resume. Not exact mid-epoch: random numbers that the data set draws inside workers,
        which start anew; the examples and their order are the same. Between epochs those are exact too.
        """
        feedback = self._feedback.state_dict()
        return {
            "version": STATE_VERSION,
            "method": describe(self.method),
            "ranks": {"rank": self.team.rank, "size": self.team.size},
            "in_epoch": self._in_epoch,
            **self._pipeline.state_dict(in_epoch=self._in_epoch),
            "selector": self._runner.state_dict(),
            "ledger": self.ledger.state_dict(),
            "stats": self.stats.state_dict(),
            "feedback": feedback,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was saved; the next iteration finishes the epoch that was under way.

        A state that does not fit this loader and its method is refused, with what differs, and changes nothing.
        """
        self.check_state_dict(state)
        parts = [self, self._runner, self.stats, self._feedback, *self._pipeline.parts()]
        transform = self._pipeline.transform
        stateful = [transform] if hasattr(transform, "load_state_dict") else []
        with unchanged_on_error(*parts, generators=self._source.generators(), stateful=stateful):
            self._pipeline.load_state_dict(state)
            self.stats.load_state_dict(state["stats"])
            self._feedback.load_state_dict(state["feedback"])
            self._batch = None
            self._look = _Look(self.model)
            self._in_epoch = self._resumed = state["in_epoch"]
            # These are written to in place, and known to take it since they were checked.
            self._runner.load_state_dict(state["selector"])
            self.ledger.load_state_dict(state["ledger"])
        self._pipeline.resubmit()

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise for a state that `load_state_dict` would refuse; changes nothing."""
        check_state(state, self.method, batch_size=self.batch_size, transform=self._pipeline.transform, team=self.team)
        self._runner.check_state_dict(state["selector"])
        self.ledger.check_state_dict(state["ledger"])
