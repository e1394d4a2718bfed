"""SelectiveLoader: wraps the user's loader and gives out full batches of selected examples.

# N = candidates, B = training batch
"""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.batches.padding import Pad
from selective_backprop.description import describe
from selective_backprop.distributed.agreement import fails_on_all
from selective_backprop.distributed.ledger import AnyLedger, make_ledger
from selective_backprop.distributed.ranks import current_ranks
from selective_backprop.distributed.team import Team
from selective_backprop.dynamics.log import Dynamics
from selective_backprop.inference import as_device, device_of
from selective_backprop.loader.checks import (
    STATE_VERSION,
    agree,
    check_arguments,
    check_audit,
    check_batch_tokens,
    check_functions,
    check_on_stats,
    check_ranks,
    check_source,
    check_state,
    to_agree_on,
)
from selective_backprop.loader.epoch import Run
from selective_backprop.loader.forwarding import LoaderAttributes
from selective_backprop.loader.given_targets import TargetCheck
from selective_backprop.loader.observer import Observer
from selective_backprop.loader.reporting import OnStats, Reporting
from selective_backprop.loader.selector import Selector
from selective_backprop.loader.source import StreamSource, make_source
from selective_backprop.loader.stepper import Stepper
from selective_backprop.losses import PerExampleLoss, WrongCountError, default_forward
from selective_backprop.method import Method
from selective_backprop.sampler.parts import Parts
from selective_backprop.sampler.planner import Planner
from selective_backprop.sampler.stats import Stats
from selective_backprop.sampler.undoing import unchanged_on_error
from selective_backprop.schedules import Schedule
from selective_backprop.types import Batch, Forward, Policy, Scorer, Task

_logger = logging.getLogger(__name__)


class SelectiveLoader(LoaderAttributes):
    """Iterates over the user's loader and gives out full batches of the examples that the method selects.

    Args:
        loader: your DataLoader. Methods that need no ids also take any other iterable of batches.
        model: the model being trained. It may be wrapped by DDP, FSDP or torch.compile.
        loss_fn: an nn loss module, a function that takes `reduction=`, or a callable that returns one loss per
            example. If an example has several losses (tokens, pixels, boxes), wrap it to say how they become one:
            `sb.losses.PerExampleLoss(loss_fn, reducer="mean")`.
        method: how to select, for example `ledger_backprop()`.
        batch_size: examples in a training batch; by default your loader's batch size. Candidate batches may be larger
            than training batches.
        batch_tokens: instead of batch_size, the most tokens in a training batch, padding included. Examples of similar
            length share a batch, so little is padded, and a batch of short examples has many of them. It needs
            pad=pad_to_longest(...), which tells where padding is. For a single process.
        forward: how a batch goes through the model: `forward(model, batch) -> (outputs, targets)`. These two are the
            arguments of loss_fn. The default is `model(inputs), targets` for a pair and `model(**batch), labels` for a
            dict. There, labels is the dict's "labels" entry, or the whole dict if it has none.
        transform: called on each batch when it is on the device, before it is scored; for example augmentation. The
            batch that is scored is the one that is trained on. If the transform has a state_dict, it is saved with the
            loader's state. If it has a true attribute takes_ids, it is called with (batch, ids, epoch), so that the
            view of an example can follow from its id.
        pad: for examples of different lengths, such as `pad_to_longest({"input_ids": 0})`. It gives examples of
            different candidate batches the same shape, so that they can share a training batch.
        device: where batches are given out. The default is the device of the model's parameters when an epoch begins.
        num_epochs: length of the run. `progress` and methods that select in a window of training need it.
        seed: seed of the loader's own random generator. Global random state is never touched.
        on_stats: called after every epoch with a flat dict of numbers: what the epoch did. `sb.Every(100, on_stats)` is
            also called after every 100 training batches. With several ranks, give it on all of them; it is called on
            rank 0, with sums over ranks.
        audit: record what every training step says about its examples, for `sb.audit(loader)`: loss, margin,
            probability of the label and best other class. It takes 16 bytes per example and epoch in which it is
            trained on, here and in saved states.

    With several ranks (torch.distributed), all of them select together, as one process would, and give out equally many
    batches. No batch holds an example twice, unless the method draws with replacement, the sampler offers an example
    twice in an epoch, or your loader has no ids.

    Every epoch stands alone. At its end, the last two batches share what does not fill a batch, so that none is smaller
    than half of B. If your DataLoader has drop_last, it is dropped instead. An epoch that keeps every candidate passes
    your own batches through unchanged. The other attributes of your loader can be read here too: `loader.dataset`,
    `loader.sampler.set_epoch(epoch)`.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module,
        loss_fn: Callable[..., Tensor] | PerExampleLoss,
        method: Method,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        forward: Forward | None = None,
        transform: Callable[..., Any] | None = None,
        pad: Pad | None = None,
        device: torch.device | str | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
        on_stats: OnStats | None = None,
        audit: bool = False,
    ) -> None:
        ranks = current_ranks()
        self.stats = Stats()
        with fails_on_all(ranks, "could not start"):  # if one rank raises, all do, so that none waits for it forever
            check_arguments(loader, model, method, batch_size=batch_size, num_epochs=num_epochs, seed=seed)
            check_batch_tokens(batch_tokens, batch_size=batch_size, pad=pad, method=method, ranks=ranks)
            check_functions(forward=forward, transform=transform, pad=pad)
            check_on_stats(on_stats)
            self._follows_model = device is None
            place = as_device(device) if device is not None else device_of(model)
            self._source = make_source(loader, place, transform, self.stats, method.keep)
            check_source(self._source, method, ranks, transform, num_epochs=num_epochs)
            check_audit(audit, self._source)
            check_ranks(model, method, ranks)
            self._loss = loss_fn if isinstance(loss_fn, PerExampleLoss) else PerExampleLoss(loss_fn)
            options: dict[str, Any] = {"num_epochs": num_epochs, "seed": seed, "forward": forward, "pad": pad}
            options |= {"transform": transform, "on_stats": on_stats, "audit": audit, **self._loss.settings()}
            agreed = to_agree_on(self._source, method, batch_size=batch_size, **options) if ranks.size > 1 else {}
        self.model = model
        self.method = method
        self.num_epochs = num_epochs
        self.team = Team(ranks)
        """The ranks that train together. A process that trains alone is a team of one."""
        num_batches, num_candidates = agree(self.team, self._source, agreed)
        needs = method.scorer.needs
        ledger = make_ledger(self._source.num_examples or 0, ranks, needs.columns)
        task = Task(model, forward or default_forward, self._loss)
        parts = Parts(method, num_epochs=num_epochs, seed=seed, team=self.team)
        observer = Observer(parts, ledger, self.stats, place, audit=audit)
        size = batch_size or self._source.batch_size
        if size is None and batch_tokens is None and (parts.mixes_batches or method.keep is not None):
            self._source.check_sizes()
        self._run = Run(
            parts,
            self.team,
            self._source,
            Planner(parts, ledger, self.team),
            Selector(parts, task, self.team, observer, self._source.stand_in),
            observer,
            batch_size=None if size is None else max(1, round(size * method.batch_scale)),
            num_batches=num_batches,
            num_candidates=num_candidates,
            passes_batches=batch_size is None and batch_tokens is None and method.batch_scale == 1,
            batch_tokens=batch_tokens,
            pad=pad,
        )
        reporting = Reporting(on_stats, self.stats, self.team)
        self._reporting = reporting
        self.stepper = Stepper(self._run, reporting, num_epochs, needs_losses=audit or needs.training_losses)
        """Gives out batches one by one, for frameworks that count them."""
        self._check_targets = TargetCheck()
        self._iteration: weakref.ref[Generator[Any]] | None = None  # the iteration that gives out batches
        self._has_warned_of_eval = False

    # ---- what users read

    def __repr__(self) -> str:
        batches, size = self._run.num_batches, self._source.batch_size
        count = "candidate batches" if batches is None else f"{batches:,} candidate batches"
        sizes = "" if size is None else f" of {size}"
        training = f", training batches of {self.batch_size}" if self.batch_size not in (None, size) else ""
        return f"{type(self).__name__}({self.method!r}, {count}{sizes}{training}, epoch {self.epoch})"

    def __len__(self) -> int:
        """Return the number of batches of the epoch under way if it is planned, else the most that an epoch can give.

        A method that scores candidates usually gives about selectivity times as many. The number is an upper bound,
        because frameworks stop an epoch after len() batches. For learning rates use `step_by_progress`.
        """
        if self.stepper.epoch is not None and (planned := self.stepper.epoch.num_batches) is not None:
            return planned
        batches, candidates = self._run.num_batches, self._run.num_candidates
        if batches is None:
            raise TypeError(
                "your loader has no length, so SelectiveLoader has none: pass sb.WithLength(loader, num_batches) to "
                "SelectiveLoader, with the number of candidate batches per epoch"
            )
        if candidates is None and not self._run.passes_batches and self.method.batch_scale == 1:
            raise TypeError(
                "the number of training batches is not known: it follows from the sizes of your loader's batches, "
                "which it does not tell, or with batch_tokens= from lengths. If its batches have one size, give your "
                "loader an attribute batch_size"
            )
        if self._run.batch_tokens is not None:
            assert candidates is not None
            return candidates  # each may be a batch of its own, if it is long
        if not self.batch_size or not candidates or self._run.passes_batches:
            return batches
        most, rest = divmod(candidates, self.batch_size)
        return most + (rest > 0 and not self._source.drop_last)

    @property
    def epoch(self) -> int:
        """Number of completed epochs. During an epoch this is its number, from 0."""
        return self.stepper.num_done

    @property
    def batch_size(self) -> int | None:
        """Examples in a full training batch; with batch_tokens=, the most that there can be.

        None before the first batch if your loader does not say its batch size.
        """
        return self._run.batch_tokens or self._run.batch_size

    @property
    def ledger(self) -> AnyLedger:
        """What is known about each example; empty if your loader has no ids. With several ranks, each holds a part.

        It is brought up to date when it is read here.
        """
        return self._run.observer.ledger

    @property
    def policy(self) -> Policy:
        """This loader's own copy of the method's policy, with its current state."""
        return self._run.parts.policy

    @property
    def scorer(self) -> Scorer:
        """This loader's own copy of the method's scorer, with its current state."""
        return self._run.parts.scorer

    @property
    def schedule(self) -> Schedule:
        """This loader's own copy of the method's schedule, with its current state, such as the tau of `kath18`."""
        return self._run.parts.schedule

    @property
    def epoch_progress(self) -> float:
        """Fraction of the current epoch's candidates offered so far, from 0 to 1."""
        return self.stepper.fraction

    @property
    def epochs_done(self) -> float:
        """Epochs offered so far, with the fraction of the current one: 2.5 in the middle of the third epoch."""
        return self.epoch + self.stepper.fraction

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered so far, from 0 to 1. Learning rate schedules should follow it."""
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveLoader")
        if self._run.num_batches is None:
            raise ValueError(
                "progress within an epoch is not known, because your loader has no length: pass "
                "sb.WithLength(loader, num_batches) to SelectiveLoader, with the number of candidate batches per epoch"
            )
        return min(1.0, self.epochs_done / self.num_epochs)

    @property
    def dynamics(self) -> Dynamics:
        """What `audit=True` has recorded. With several ranks, all must read this: it is the log of all ranks."""
        if self._run.observer.recorder is None:
            raise RuntimeError(
                "this loader recorded no dynamics: pass audit=True to SelectiveLoader when the run begins"
            )
        return self._run.observer.recorder.whole(self.team.ranks)

    @property
    def batch(self) -> Batch:
        """The batch given out last, with its ids, weights and probabilities."""
        if self.stepper.batch is None:
            raise RuntimeError("no batch has been given out yet")
        return self.stepper.batch

    def weights(self, batch: Batch | None = None) -> Tensor:
        """Return the weights of the batch given out last, on its device, for loops that apply them themselves.

        batch: another batch, if it came from `batches()`.
        """
        batch = self.batch if batch is None else batch
        self.stepper.got_weights(batch)
        return batch.weights.to(self._source.device, non_blocking=True)

    def loss(self, outputs: Any, targets: Any, batch: Batch | None = None) -> Tensor:
        """Compute the loss of the batch given out last, with its weights, and record each example's loss in the ledger.

        If all weights are 1, the result is loss_fn's own value, bit for bit, from one call of loss_fn. If this is
        called several times for a batch, as by SAM or LBFGS, the first call is recorded.

        A loss_fn of your own that takes `reduction=` and returns a single number does not tell the loss of each
        example. Methods that select by training losses then call a copy of it once more, with the same random numbers.
        To avoid this second call, let loss_fn return one loss per example.

        Args:
            outputs: the model's outputs, first argument of loss_fn.
            targets: second argument of loss_fn.
            batch: the batch that the outputs belong to, if it came from `batches()`.
        """
        step = self.stepper.step
        if batch is None:
            if step is None:
                raise RuntimeError(
                    "no training step is under way: call loader.loss inside the loop over the loader, for the batch "
                    "that the loader gave out last. Here it would record these losses for the wrong examples. For "
                    "other batches, such as validation, call your loss function itself"
                )
            batch = step.batch
        weights = batch.weights.to(self._source.device, non_blocking=True) if batch.is_weighted else None
        observer = self._run.observer
        if observer.needs_losses or weights is not None:
            self._check_targets(batch.data, targets)
        try:
            loss, losses = self._loss.for_training(
                outputs,
                targets,
                weights,
                len(batch),
                record=observer.needs_losses,
                may_weigh=self._run.parts.policy.weighting != "none",
            )
        except WrongCountError as error:
            raise ValueError(
                f"{error}. loader.loss is for the batch that the loader gave out; for other batches, such as "
                "validation, call your loss function itself"
            ) from None
        if self.stepper.got_losses(batch, has_gradient=loss.requires_grad):
            # A batch that was taken ahead may be trained on when its epoch is already over.
            is_current = step is not None and step.batch is batch
            epoch = step.epoch if step is not None and is_current else self.epoch - (not self.stepper.in_epoch)
            observer.trained(batch, outputs, targets, losses, epoch)
        if step is None:
            observer.settle()  # the batch was the last, and no end of a step will come
        return loss

    # ---- iteration

    def __iter__(self) -> Iterator[Any]:
        """Give out one epoch, or the rest of the one that was under way when the state was saved.

        Only one iteration can run at a time. Leaving it early ends the epoch. An iteration that is left during its
        first batch, as `next(iter(loader))` does, does not count as an epoch.
        """
        iteration = self._iterate(itself := [])
        itself.append(weakref.ref(iteration))
        return iteration

    def _iterate(self, itself: list[weakref.ref[Generator[Any]]]) -> Generator[Any]:
        """Run one iteration. `itself` holds a weak reference to this very generator, added after it was made."""
        self._refuse_a_second_iteration()
        self._iteration = itself[0]
        is_finalizing = sys.is_finalizing  # at interpreter exit this module's own names are gone
        try:
            self._follow_device()
            self.stepper.begin()
            while (batch := self.stepper.next()) is not None:
                yield batch.data
                self._require_training()
                self.stepper.end_step()
            self.stepper.end_epoch()
            self.stepper.report_stats()
        finally:
            if not is_finalizing():  # at interpreter exit parts of torch are gone already
                self.stepper.leave()

    def _require_training(self) -> None:
        """Raise if the loop does not train. A look at the first batch never comes here."""
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "this loop runs without gradients (torch.no_grad or inference_mode), but SelectiveLoader is for "
                "training: it gives out selected examples only, and counts them as trained on. To evaluate, or to "
                "update BatchNorm statistics, loop over your own DataLoader"
            )
        if self.model.training or self._has_warned_of_eval:
            return
        if not any(module.training for module in self.model.modules()):
            self._has_warned_of_eval = True
            _logger.warning(
                "the whole model is in eval mode in a loop over SelectiveLoader, which is for training: call "
                "model.train() before the loop. To evaluate, loop over your own DataLoader"
            )

    @property
    def _is_iterated(self) -> bool:
        other = self._iteration() if self._iteration is not None else None
        return other is not None and inspect.getgeneratorstate(other) != inspect.GEN_CLOSED

    def _refuse_a_second_iteration(self) -> None:
        if self._is_iterated:
            raise RuntimeError(
                "another iteration over this loader is still going on, and both would take batches from the same "
                "epoch: finish it, leave its loop, or close its iterator (iterator.close()) before the next one "
                "begins. For two loops at once, make two loaders"
            )

    def _follow_device(self) -> None:
        """Follow the model if it was moved to another device since the last epoch, with all that is queued."""
        if self._follows_model and (device := device_of(self.model)) != self._source.device:
            self.stepper.move(device)

    def batches(self) -> Iterator[Batch]:
        """Iterate like `for batch in loader`, for callers that take batches before they train on the earlier ones.

        Each batch comes with its ids and weights. Pass it to `loss`, which cannot know otherwise which batch is meant,
        or to `weights`, if you apply them yourself. If the method needs this and none of an epoch's batches is passed,
        the next epoch begins with an error.
        Save the loader's state only when all batches that were taken have been trained on.
        """
        for _ in self:
            self.stepper.expect_later()
            yield self.batch

    def with_bar(self, bar: Any) -> Iterator[Any]:
        """Iterate like `for batch in loader`, with a progress bar that fills up as the epoch's candidates are offered.

        Write `for inputs, targets in loader.with_bar(tqdm()):`. `tqdm(loader)` reads `len(loader)` before the epoch is
        planned, when it is the most that the epoch can give, so it would stop early.

        Args:
            bar: `tqdm()` or anything else with `update(n)` and `close()`. It reaches its `total`, whatever that counts:
                with `tqdm(total=len(dataset))`, the bar counts examples. A `total` of None is set to the number of
                candidate batches. If your loader has no length, the bar counts training batches.
        """
        length = self._run.num_batches
        if length is not None and getattr(bar, "total", None) is None:
            bar.total = length
        epoch, shown = self.epoch, 0
        try:
            for batch in self:
                yield batch
                reached = shown + 1 if length is None else round(self.stepper.fraction * bar.total)
                bar.update(reached - shown)
                shown = reached
            if length is not None and self.epoch > epoch:
                bar.update(bar.total - shown)
        finally:
            bar.close()

    # ---- saving

    def generators(self) -> list[torch.Generator]:
        """Return the random generators of your loader and its samplers. Their states are saved with this loader's."""
        return self._source.generators()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a SelectiveLoader cannot be copied or pickled: a copy would score with a copy of your model, and go on "
            "with the same epoch. Make the loader in the process that trains; to save it, save loader.state_dict()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True.

        It can be saved after any training step, also in the middle of an epoch.

        The order of later epochs comes from the DataLoader's generator, which is saved here if there is one. Otherwise
        it comes from torch's global random state. Save that yourself, after this state: a sampler that draws while the
        epoch runs draws the rest of the epoch here.

        One thing is not exact in the middle of an epoch: random numbers that the data set draws inside workers, because
        workers start anew. The examples and their order are still the same. Between epochs everything is exact, unless
        workers are persistent.
        """
        return self.state_to_write(copy=True)

    def state_to_write(self, *, copy: bool = False) -> dict[str, Any]:
        """Return the state without, unless copy is set, copying the ledger.

        It is for those who write it to a file at once, as `save_checkpoint` does: training on would change it.
        """
        run, source = self._run, self._source
        epochs = self.stepper.state_dict()
        observed = run.observer.state_dict(copy=copy)  # before the parts, which learn from the losses that it collected
        between = source.between_epochs() if isinstance(source, StreamSource) and not self.stepper.in_epoch else None
        return {
            "version": STATE_VERSION,
            "method": describe(self.method),
            "ranks": {"rank": self.team.rank, "size": self.team.size},
            "batch_size": run.batch_size,
            "epochs": epochs,
            "parts": run.parts.state_dict(),
            "selector": run.selector.state_dict(),
            **observed,
            "reported": self._reporting.state_dict(),
            "transform": source.transform.state_dict() if hasattr(source.transform, "state_dict") else None,
            "stream": between,
            "learned_length": source.learned_length,
            "generators": [generator.get_state() for generator in source.generators()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. The next iteration finishes the epoch that was under way.

        If the state does not fit this loader and its method, an error says what differs, and nothing is changed.
        """
        self.check_state_dict(state)
        if self._is_iterated:
            raise RuntimeError(
                "a loop over this loader is under way, and would go on with its own epoch: load the state before the "
                "loop, or leave the loop first (break, or iterator.close())"
            )
        run, source = self._run, self._source
        stateful = [source.transform] if hasattr(source.transform, "load_state_dict") else []
        parts = [self, run, source, run.selector, run.observer, self._reporting, self.stepper, self.stats]
        with unchanged_on_error(*parts, generators=source.generators(), stateful=[*stateful, run.parts]):
            run.set_batch_size(state["batch_size"])
            if state["batch_size"] is not None:
                source.know_size(round(state["batch_size"] / self.method.batch_scale))
            for generator, saved in zip(source.generators(), state["generators"], strict=True):
                generator.set_state(saved)
            source.learned_length = state["learned_length"]
            if isinstance(source, StreamSource):
                source.load_between_epochs(state["stream"])
            if stateful and state["transform"] is not None:
                source.transform.load_state_dict(state["transform"])
            run.selector.load_state_dict(state["selector"])
            run.parts.load_state_dict(state["parts"])
            self._reporting.load_state_dict(state["reported"])
            self.stepper.load_state_dict(state["epochs"], state["parts"])
            # The ledger is written to in place and cannot be undone. check_state_dict has made sure that it fits.
            run.observer.load_state_dict(state)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise if `load_state_dict` would refuse this state. Nothing is changed."""
        with unchanged_on_error():  # what a check stumbles over is damage
            check_state(state, self.method, self._source, batch_size=self._run.batch_size, team=self.team)
            self._run.parts.check_state_dict(state["parts"])
            self._run.observer.check_state_dict(state)
