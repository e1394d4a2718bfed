"""SelectiveLoader: wraps the user's loader and gives out full batches of selected examples.

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
from selective_backprop.dynamics.log import Dynamics
from selective_backprop.inference import device_of
from selective_backprop.loader.checks import (
    STATE_VERSION,
    agree,
    check_arguments,
    check_batch_tokens,
    check_numbers,
    check_ranks,
    check_record,
    check_reporting,
    check_source,
    check_state,
    check_token_share,
    to_agree_on,
)
from selective_backprop.loader.feedback import Feedback
from selective_backprop.loader.forwarding import LoaderAttributes
from selective_backprop.loader.index_stream import drops_last
from selective_backprop.loader.loading import Loading
from selective_backprop.loader.pipeline import Pipeline
from selective_backprop.loader.recording import Recorder
from selective_backprop.loader.reporting import OnStats, Reporting
from selective_backprop.loader.runner import Runner
from selective_backprop.loader.source import Source
from selective_backprop.loader.stats import Stats
from selective_backprop.loader.token_share import TokenShare
from selective_backprop.loader.training_loss import TrainingLoss
from selective_backprop.loader.undoing import unchanged_on_error
from selective_backprop.losses import PerExampleLoss, Reducer, default_forward
from selective_backprop.method import Method
from selective_backprop.schedules import Schedule
from selective_backprop.types import Batch, Forward, Policy, Scorer, Task

_logger = logging.getLogger(__name__)


class _Look:
    """Finds out whether the caller only looked at the first batch of an iteration, without training on it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.batch: Batch | None = None
        """The first batch of the iteration, until the caller has trained on it."""
        self.trained = False
        self.put_back = False
        """Whether a batch was put back into the queue, so that the next iteration continues the same epoch."""
        self._marks: list[Any] = []

    def start(self) -> None:
        """Begin an iteration. Batches that `flush` gave out earlier do not belong to it."""
        self.batch, self.trained = None, False

    def begin(self, batch: Batch) -> None:
        if self.batch is None and not self.trained:
            self.batch, self._marks = batch, self._written()

    def end(self) -> Batch | None:
        """End the iteration. Returns its first batch if the caller computed no loss and wrote no gradient or weight."""
        batch, self.batch = self.batch, None
        return batch if not self.trained and self._marks == self._written() else None

    def _written(self) -> list[Any]:
        return [
            (p._version, None if p.grad is None else (id(p.grad), p.grad._version)) for p in self._model.parameters()
        ]


class SelectiveLoader(LoaderAttributes):
    """Iterates over the user's loader and gives out full batches of the examples that the method selects.

    Args:
        loader: your DataLoader. Methods that need no ids also take any other iterable of batches.
        model: the model being trained. It may be wrapped by DDP, FSDP or torch.compile.
        loss_fn: an nn loss module, a function that takes `reduction=`, or a callable that returns one loss per
            example.
        method: how to select, for example `selective_backprop(selectivity=1/3)`.
        batch_size: examples in a training batch; by default your loader's batch size. Candidate batches may be larger
            than training batches.
        batch_tokens: instead of batch_size, the most tokens in a training batch, padding included. Examples of similar
            length share a batch, so little is padded, and a batch of short examples has many of them. It needs
            pad=pad_to_longest(...), which tells where padding is. Every epoch ends with smaller batches of what is
            left. For a single process.
        forward: how a batch goes through the model: `forward(model, batch) -> (outputs, targets)`. These two are the
            arguments of loss_fn. The default is `model(inputs), targets` for a pair and `model(**batch), labels` for a
            dict. There, labels is the dict's "labels" entry, or the whole dict if it has none.
        transform: called on each candidate batch when it is on the device, before it is scored; for example
            augmentation. The batch that is scored is the one that is trained on. If the transform has a state_dict,
            it is saved with the loader's state. If it has a true attribute takes_ids, it is called with (batch, ids,
            epoch), so that the view of an example can follow from its id; see `functional.random_by_id`.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean" of those that
            are not ignored, "sum", "max" or a function, such as `mean_of_largest(8)`.
        pad: for examples of different lengths, such as `pad_to_longest({"input_ids": 0})`. It gives examples of
            different candidate batches the same shape, so that they can share a training batch.
        token_share: train only on this share of each batch's tokens, those with the highest losses. It masks the loss
            that `loss` returns, and saves no compute by itself. It needs a loss of each token, such as
            `token_cross_entropy`.
        token_reference: with token_share, rank tokens by their loss minus that of this model.
        device: where batches are given out. The default is the device of the model's parameters when an epoch begins.
        num_epochs: length of the run. `progress` and methods that select in a window of training need it. With it,
            the last epoch also gives out what is left, as one smaller batch. It does not if the DataLoader has
            drop_last, or if a single example is left, because BatchNorm cannot train on one example.
        seed: seed of the loader's own random generator. Global random state is never touched.
        scope: with several ranks (torch.distributed), "global" selects among the candidates of all ranks together and
            "local" on each rank alone. All ranks give out equally many batches, all of them full.
        total_batches: candidate batches per epoch, if your loader has no length. `len` and `progress` need it. If it
            is not quite right, `progress` still ends at 1, and the log says how many batches there were.
        on_stats: called after every epoch with a flat dict of numbers: what the epoch did. It may be one of
            `sb.loggers`. With several ranks, give it on all of them; it is called on rank 0, with sums over ranks.
        stats_every: also call on_stats after this many training batches. Each call tells what is new since the last.
        record: "dynamics" records what every training step says about its examples, for `sb.audit(loader)`: loss,
            margin, probability of the label and best other class. It takes 16 bytes per example and epoch in which it
            is trained on, here and in saved states.

    No batch holds an example twice, unless the method draws with replacement, the sampler offers an example twice in an
    epoch, or your loader has no ids. Examples that wait in the queue when an epoch begins are given out in that epoch,
    and are skipped when the sampler comes to them.

    Without num_epochs, up to B - 1 selected examples may still wait at the end of the run; `flush()` gives them out.
    As long as an epoch keeps every candidate, your own batches pass through unchanged. The other attributes of your
    loader can be read here too: `loader.dataset`, `loader.sampler.set_epoch(epoch)`.
    """

    puts_back = True
    """Whether a batch that the caller only looked at is given out again."""

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        method: Method,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        forward: Forward | None = None,
        transform: Callable[[Any], Any] | None = None,
        reducer: str | Reducer | None = None,
        pad: Pad | None = None,
        token_share: float | None = None,
        token_reference: nn.Module | None = None,
        device: torch.device | str | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        scope: Scope = "global",
        total_batches: int | None = None,
        on_stats: OnStats | None = None,
        stats_every: int | None = None,
        record: str | None = None,
    ) -> None:
        ranks = current_ranks()
        with together(ranks, "could not start"):  # if one rank raises, all do, so that none waits for it forever
            check_arguments(loader, model, method, batch_size=batch_size, num_epochs=num_epochs)
            check_batch_tokens(batch_tokens, batch_size=batch_size, pad=pad, method=method, ranks=ranks)
            check_numbers(seed=seed, scope=scope, total_batches=total_batches, loader=loader)
            check_reporting(on_stats, stats_every)
            self._source = Source(loader, method.keep, total_batches)
            check_source(self._source, method, ranks, transform)
            check_record(record, self._source)
            check_ranks(model, method, ranks)
            self._loss = PerExampleLoss(loss_fn, reducer)
            check_token_share(token_share, token_reference)
            tokens = None
            if token_share is not None:
                tokens = TokenShare(token_share, token_reference, forward or default_forward, self._loss)
            self._follows_model = device is None
            self._device = torch.device(device) if device is not None else device_of(model)
            options: dict[str, Any] = {"num_epochs": num_epochs, "seed": seed, "scope": scope, "forward": forward}
            options |= {"transform": transform, "reducer": reducer, "pad": pad}
            options |= {"on_stats": on_stats, "stats_every": stats_every, "record": record}
            alike = to_agree_on(self._source, method, batch_size=batch_size, **options) if ranks.size > 1 else {}
        self.model = model
        self.method = method
        self.num_epochs = num_epochs
        self.team = Team(ranks, scope)
        """The ranks that train together. A process that trains alone is a team of one."""
        self.stats = Stats()
        num_batches = agree(self.team, self._source, alike)
        needs = method.scorer.needs
        self.ledger: AnyLedger = make_ledger(
            self._source.num_examples or 0,
            ranks,
            past_scores=needs.past_scores,
            earlier_losses=needs.earlier_losses,
            first_losses=needs.first_losses,
        )
        """What is known about each example; empty if your loader has no ids. With several ranks, each holds a part."""
        task = Task(model, forward or default_forward, self._loss)
        self._runner = Runner(
            method,
            task,
            self.ledger,
            self.stats,
            num_epochs=num_epochs,
            seed=seed,
            team=self.team,
            plans=self._source.can_be_planned,
        )
        self._pipeline = Pipeline(
            Loading(self._source, self._device, transform, self.stats),
            self._runner,
            self.stats,
            team=self.team,
            num_batches=num_batches,
            device=self._device,
            batch_size=batch_size,
            pad=pad,
            batch_tokens=batch_tokens,
            num_epochs=num_epochs,
        )
        self._batch_tokens = batch_tokens
        self.queue = self._pipeline.queue
        """Selected examples that wait for their batch to fill. Read it, but do not change it."""
        records = record is not None or method.scorer.needs.dynamics
        self._recorder = Recorder(len(self.ledger)) if records else None
        self._feedback = Feedback(self._runner, self._device, record=record)
        self._training_loss = TrainingLoss(self._loss, self._runner, tokens, record=records)
        self._reporting = Reporting(on_stats, stats_every, self.stats, self.team)
        self._in_epoch = self._resumed = False
        self._batch: Batch | None = None
        self._step_under_way = False
        self._look = _Look(model)
        self._iteration: weakref.ref[Generator[Any]] | None = None  # the iteration that gives out batches
        self._warned_beyond_end = False

    # ---- what users read

    def __repr__(self) -> str:
        batches, size = self._pipeline.num_batches, self._source.batch_size
        count = "candidate batches" if batches is None else f"{batches:,} candidate batches"
        sizes = "" if size is None else f" of {size}"
        training = f", training batches of {self.batch_size}" if self.batch_size not in (None, size) else ""
        return f"{type(self).__name__}({self.method!r}, {count}{sizes}{training}, epoch {self.epoch})"

    def __len__(self) -> int:
        """Return the most batches that an epoch can give. Usually it gives about selectivity times as many.

        It is an upper bound, because frameworks stop an epoch after len() batches. With num_epochs, it counts one batch
        more if examples left from the epoch before may come on top of an epoch's candidates. This is so if the loader
        has no ids, or if its sampler is your own or draws with replacement. For learning rates use `step_by_progress`.
        """
        batches, candidates = self._pipeline.num_batches, self._pipeline.num_candidates
        if batches is None:
            raise TypeError(
                "your loader has no length, so SelectiveLoader has none: pass total_batches= to SelectiveLoader, the "
                "number of candidate batches per epoch"
            )
        if self._batch_tokens is not None:
            if candidates is None:
                raise TypeError("with batch_tokens=, the number of batches follows from lengths and is not known")
            return candidates  # each may be a batch of its own, if it is long
        if self.batch_size and candidates:
            batches = math.ceil(candidates / self.batch_size)
        # Examples that waited when the last epoch began may come on top of its candidates.
        return batches + (self.num_epochs is not None and self._pipeline.may_carry_over and not self._drop_last)

    @property
    def epoch(self) -> int:
        """Number of completed epochs. During an epoch this is its number, from 0."""
        return self._pipeline.epoch

    @property
    def in_epoch(self) -> bool:
        """Whether an epoch is under way: it has begun, and not all of its candidates have been offered."""
        return self._in_epoch

    @property
    def layout(self) -> Layout | None:
        """How batches are divided into columns; None before the first batch is loaded."""
        return self.queue.layout

    @property
    def batch_size(self) -> int | None:
        """Examples in a full training batch; with batch_tokens=, the most that there can be.

        None before the first batch if your loader does not say its batch size.
        """
        return self.queue.batch_size

    @property
    def policy(self) -> Policy:
        """This loader's own copy of the method's policy, with its current state."""
        return self._runner.policy

    @property
    def scorer(self) -> Scorer:
        """This loader's own copy of the method's scorer, with its current state."""
        return self._runner.scorer

    @property
    def schedule(self) -> Schedule:
        """This loader's own copy of the method's schedule, with its current state, such as the tau of `kath18`."""
        return self._runner.schedule

    @property
    def epochs_done(self) -> float:
        """Epochs offered so far, with the fraction of the current one: 2.5 in the middle of the third epoch."""
        return self.epoch + self._pipeline.fraction

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered so far, from 0 to 1. Learning rate schedules should follow it."""
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveLoader")
        if self._pipeline.num_batches is None:
            raise ValueError(
                "progress within an epoch is not known, because your loader has no length: pass total_batches= to "
                "SelectiveLoader, the number of candidate batches per epoch"
            )
        return min(1.0, self.epochs_done / self.num_epochs)

    @property
    def dynamics(self) -> Dynamics:
        """What `record="dynamics"` has recorded. With several ranks, all must read this: it is the log of all ranks."""
        if self._recorder is None:
            raise RuntimeError(
                'this loader recorded no dynamics: pass record="dynamics" to SelectiveLoader when the run begins'
            )
        return self._recorder.whole(self.team.ranks)

    @property
    def batch(self) -> Batch:
        """The batch given out last, with its ids, weights and probabilities."""
        if self._batch is None:
            raise RuntimeError("no batch has been given out yet")
        return self._batch

    def loss(self, outputs: Any, targets: Any, batch: Batch | None = None) -> Tensor:
        """Compute the loss of the batch given out last, with its weights, and record each example's loss in the ledger.

        If all weights are 1, the result is loss_fn's own value, bit for bit, from one call of loss_fn.

        A loss_fn of your own that returns a single number does not tell the loss of each example. Methods that select
        by training losses then call a copy of it once more, with the same random numbers. To avoid this second call,
        let loss_fn return one loss per example.

        Args:
            outputs: the model's outputs, first argument of loss_fn.
            targets: second argument of loss_fn.
            batch: the batch that the outputs belong to, if it came from `batches()`.
        """
        if batch is None:
            batch = self.batch
            if not self._step_under_way:
                raise RuntimeError(
                    "no training step is under way: call loader.loss inside the loop over the loader, for the batch "
                    "that the loader gave out last. Here it would record these losses for the wrong examples. For "
                    "other batches, such as validation, call your loss function itself"
                )
        self._look.trained = True
        # A batch from `flush` belongs to the epoch before: that epoch is already counted as completed.
        epoch = self.epoch if self._in_epoch else self.epoch - 1
        weighted = self._feedback.weighted if batch is self._batch else not bool((batch.weights == 1).all())
        weights = batch.weights.to(self._device, non_blocking=True) if weighted else None
        loss, losses = self._training_loss(batch, outputs, targets, weights)
        self._feedback.weights_used = True
        self._feedback.add(batch, losses, epoch)
        if not self._step_under_way:  # the batch was taken ahead, and was the last: no end of a step will come
            self._feedback.learn_if_due()
        if self._recorder is not None:
            assert losses is not None
            self._recorder.add(batch, outputs, targets, losses, epoch)
        return loss

    def call_in_errors(self, *, loss: str, weights: str) -> None:
        """Set what errors tell users to call, for frameworks whose users do not see this loader.

        Args:
            loss: replaces `loader.loss(outputs, targets)`.
            weights: replaces `loader.batch.weights`.
        """
        self._feedback.loss_call, self._feedback.weights_name = loss, weights

    # ---- iteration

    def __iter__(self) -> Iterator[Any]:
        """Give out one epoch, or the rest of the one that was under way when the state was saved.

        Only one iteration can run at a time. Leaving it early ends the epoch, with one exception: if the caller only
        looked at the first batch, as `next(iter(loader))` does, the next iteration begins with that batch again.
        """
        iteration = self._iterate(itself := [])
        itself.append(weakref.ref(iteration))
        return iteration

    def _iterate(self, itself: list[weakref.ref[Generator[Any]]]) -> Generator[Any]:
        """Run one iteration. `itself` holds a weak reference to this very generator, added after it was made."""
        self._refuse_a_second_iteration()
        self._iteration = itself[0]
        self._look.start()
        is_finalizing = sys.is_finalizing  # at interpreter exit this module's own names are gone
        try:
            yield from self.epoch_batches()
            self.report_stats()
        finally:
            if not is_finalizing():  # at interpreter exit parts of torch are gone already
                self._leave_iteration()

    def epoch_batches(self) -> Iterator[Any]:
        """Give out the batches of one iteration: an epoch, or the rest of one. Subclasses may override this.

        The steps that it calls are public, because frameworks that count batches call them one by one.
        """
        self.begin_epoch()
        yield from self._ready_batches()  # batches that were already queued when the state was saved
        while self.offer():
            yield from self._ready_batches()
        # These come before end_epoch, so that a state saved after one of them still has the others.
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
        if not self._resumed:
            self.report_stats()
        self._reporting.begin_epoch()
        self._follow_device()
        if not self._in_epoch:
            self._warn_beyond_the_end()
            self._feedback.learn()  # losses of batches that were taken ahead of training
        looked, self._look.put_back = self._look.put_back, False
        resumed, self._in_epoch, self._resumed = self._in_epoch, True, False
        if not looked:
            if self._runner.scorer.needs.dynamics and not resumed:
                self._runner.scorer.learn_dynamics(self.dynamics)
            self._pipeline.begin(resumed=resumed)

    def offer(self) -> bool:
        """Select from the next candidate batch into the queue. False when the epoch has no candidates left."""
        scored = self.stats.scored
        if self._pipeline.step():
            if self.stats.scored > scored:
                self._feedback.learn()  # no extra wait: scoring has just waited for the device
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
        """Number of training batches that can still be taken after the epoch has ended, a smaller last one included."""
        return self.queue.num_ready + (self.queue.num_rest_batches if self.ends_with_rest else 0)

    @property
    def ends_with_rest(self) -> bool:
        """Whether the epoch that has just ended also gives out what is left, as a smaller batch, by `flush`."""
        if self._pipeline.drains:
            return True  # everything was kept, and plain training gives out the smaller last batch too
        # BatchNorm cannot train on a single example, and a long run must not fail on its very last step.
        return self.epoch == self.num_epochs and self.queue.rest > 1 and not self._drop_last

    def take(self, *, rest: bool = False) -> Batch | None:
        """Take the next full training batch and begin a training step on it. None if no batch is ready.

        rest: if no full batch is ready, take what is left as a smaller one.
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
        """End the training step on the batch taken last, and learn its losses."""
        if self._step_under_way:
            self._step_under_way = False
            self.stats.switch("")
            self._look.trained = True  # the caller went on to the next batch
            self._feedback.step_is_over()
            self._reporting.step_is_over(self.epochs_done)

    def end_epoch(self) -> None:
        """End the epoch. Candidates that have not been offered yet are dropped."""
        if not self._in_epoch:
            return
        if self._pipeline.fraction == 1.0:
            self._source.note_length()
        self._close_epoch()
        if not self.num_left:
            self._pipeline.note_silence()

    def report_stats(self) -> None:
        """Tell `on_stats` what this epoch did, if that has not been done yet. For a last epoch that was left early.

        When a loop over an epoch ends by itself, and when the next epoch begins, this is done anyway.
        """
        self._reporting.epoch_is_over(self.epochs_done)

    def _close_epoch(self) -> None:
        self._feedback.learn()
        self._runner.share_check.end_epoch(self.epoch)
        self._pipeline.end()
        self._in_epoch = False

    def flush(self) -> Iterator[Any]:
        """Give out everything that is still queued. The last batch may be smaller than the others."""
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
            self._pipeline.release()  # after a break or an error, workers may still be loading candidates

    def _refuse_a_second_iteration(self) -> None:
        other = self._iteration() if self._iteration is not None else None
        if other is not None and inspect.getgeneratorstate(other) != inspect.GEN_CLOSED:
            raise RuntimeError(
                "another iteration over this loader is still going on, and both would take batches from the same "
                "epoch: finish it, leave its loop, or close its iterator (iterator.close()) before the next one "
                "begins. For two loops at once, make two loaders"
            )

    def _put_back(self, batch: Batch) -> None:
        """Put the epoch's first batch back into the queue, because the caller only looked at it."""
        self.queue.put_back(batch)
        self.stats.trained -= len(batch)
        self.stats.batches -= 1
        self.stats.queued = len(self.queue)
        if not self._in_epoch:  # the first batch was also the last one
            self._pipeline.reopen()
        self._in_epoch = self._resumed = self._look.put_back = True

    def _follow_device(self) -> None:
        """Follow the model if it was moved to another device since the last epoch, with all that is queued."""
        if self._follows_model and (device := device_of(self.model)) != self._device:
            self._device = device
            self._pipeline.move(device)
            self._feedback.device = device

    def _warn_beyond_the_end(self) -> None:
        if self.num_epochs is not None and self.epoch >= self.num_epochs and not self._warned_beyond_end:
            self._warned_beyond_end = True
            _logger.warning(
                "epoch %d begins, but this SelectiveLoader was made for num_epochs=%d: progress stays at 1, so a "
                "learning rate by step_by_progress stays where it ended. Pass the length of the run as num_epochs=",
                self.epoch + 1,
                self.num_epochs,
            )

    def batches(self) -> Iterator[Batch]:
        """Iterate like `for batch in loader`, for callers that take batches before they train on the earlier ones.

        Each batch comes with its ids and weights. Pass it to `loss`, which cannot know otherwise which batch is meant.
        Save the loader's state only when all batches that were taken have been trained on.
        """
        for _ in self:
            self._feedback.expect_nothing()
            self._look.batch = None  # the caller keeps the batch, so it must not be put back
            assert self._batch is not None
            yield self._batch

    def with_bar(self, bar: Any) -> Iterator[Any]:
        """Iterate like `for batch in loader`, with a progress bar that counts candidates and fills up in each epoch.

        Write `for inputs, targets in loader.with_bar(tqdm()):`. A bar around the loader itself would stop at
        selectivity x 100%, because `len(loader)` is the most that an epoch can give.

        Args:
            bar: `tqdm()` or anything else with `update(n)` and `close()`. If its `total` is None, it is set to the
                number of candidate batches per epoch.
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
        """Move the bar to the current place in the epoch. If the length is not known, it counts training batches."""
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
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True.

        It can be saved after any training step, also in the middle of an epoch.

        The order of later epochs comes from the DataLoader's generator, which is saved here if there is one. Otherwise
        it comes from torch's global random state. Save that yourself, as for any exact resume.

        One thing is not exact in the middle of an epoch: random numbers that the data set draws inside workers, because
        workers start anew. The examples and their order are still the same. Between epochs everything is exact.
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
            "reported": self._reporting.state_dict(),
            "feedback": feedback,
            **({"dynamics": self._recorder.state_dict()} if self._recorder is not None else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. The next iteration finishes the epoch that was under way.

        If the state does not fit this loader and its method, an error says what differs, and nothing is changed.
        """
        self.check_state_dict(state)
        parts = [self, self._runner, self.stats, self._feedback, self._reporting, *self._pipeline.parts()]
        if self._recorder is not None:
            parts.append(self._recorder)
        transform = self._pipeline.transform
        stateful = [transform] if hasattr(transform, "load_state_dict") else []
        with unchanged_on_error(*parts, generators=self._source.generators(), stateful=stateful):
            self._pipeline.load_state_dict(state)
            self.stats.load_state_dict(state["stats"])
            self._reporting.load_state_dict(state.get("reported"))
            self._feedback.load_state_dict(state["feedback"])
            if self._recorder is not None:
                self._recorder.load_state_dict(state["dynamics"])
            self._batch = None
            self._look = _Look(self.model)
            self._in_epoch = self._resumed = state["in_epoch"]
            # These two are written to in place and cannot be undone. check_state_dict has made sure that they fit.
            self._runner.load_state_dict(state["selector"])
            self.ledger.load_state_dict(state["ledger"])
        self._pipeline.resubmit()

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if `load_state_dict` would refuse this state. Nothing is changed."""
        check_state(state, self.method, batch_size=self.batch_size, transform=self._pipeline.transform, team=self.team)
        self._runner.check_state_dict(state["selector"])
        self.ledger.check_state_dict(state["ledger"])
        recorded = "dynamics" in state
        if recorded != (self._recorder is not None):
            raise ValueError(
                f'the state was saved {"with" if recorded else "without"} record="dynamics", but this loader is '
                f"{'without' if recorded else 'with'} it: pass the same record="
            )
        if self._recorder is not None:
            self._recorder.check_state_dict(state["dynamics"])
