"""SelectiveLoader: iterates over the user's loader and gives out full batches of what the method selects."""

from __future__ import annotations

import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop import checks
from selective_backprop.chain.ids import Options
from selective_backprop.chain.padding import Pad
from selective_backprop.chain.steps import Steps
from selective_backprop.chain.targets import TargetCheck
from selective_backprop.chain.user_loader import (
    batch_size_of,
    drops_last,
    generator_owners,
    has_ids,
    most_on_a_rank,
    require_torchs_order,
)
from selective_backprop.chain.views import LoaderView
from selective_backprop.chain.with_length import WithLength
from selective_backprop.description import describe
from selective_backprop.dynamics.recording import Recorder
from selective_backprop.inference import as_device, device_of
from selective_backprop.losses import PerExampleLoss, WrongCountError, default_forward
from selective_backprop.method import Method, require_method
from selective_backprop.ranks import current_ranks, fails_on_all
from selective_backprop.run import Run
from selective_backprop.stats import OnStats
from selective_backprop.types import Batch, Forward, Task

STATE_VERSION = 1
_STATE_KEYS = {"method", "ranks", "batch_size", "batch_tokens", "run", "under_way", "transform", "generators"}
_logger = logging.getLogger(__name__)


class SelectiveLoader(LoaderView):
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
            also called after every 100 training batches. With several ranks, it is called on rank 0.
        audit: record what every training step says about its examples, for `sb.audit(loader)`: loss, margin,
            probability of the label and best other class. It takes 16 bytes per example and epoch in which it is
            trained on, here and in saved states.

    With several ranks (torch.distributed), all of them select together, as one process would, and give out equally many
    batches. Every rank holds the whole ledger. No batch holds an example twice, unless the method draws with
    replacement, the sampler offers an example twice in an epoch, or your loader has no ids.

    Every epoch stands alone. Its ids are drawn when it starts. At its end, the last two batches share what does not
    fill a batch, so that none is smaller than half of B. If your DataLoader has drop_last, it is dropped instead. An
    epoch that keeps every candidate passes your own batches through unchanged. The other attributes of your loader can
    be read here too: `loader.dataset`, `loader.sampler.set_epoch(epoch)`.
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
        functions = {"forward": forward, "transform": transform, "pad": pad, "on_stats": on_stats}
        numbers = {"batch_size": batch_size, "batch_tokens": batch_tokens, "num_epochs": num_epochs}
        with fails_on_all(ranks, "could not start"):  # if one rank raises, all do, so that none waits for it forever
            checks.check_loader(loader)
            require_method(method)
            checks.check_options(seed=seed, audit=audit, functions=functions, **numbers)
            checks.check_model(model, method, ranks)
            checks.check_batch_tokens(batch_tokens, batch_size=batch_size, pad=pad, method=method, ranks=ranks)
            user: Any = loader.loader if isinstance(loader, WithLength) else loader
            with_ids = has_ids(user)
            if with_ids:
                require_torchs_order(user)
            num_examples = len(user.dataset) if with_ids else None
            checks.check_ids(user, method, transform, has_ids=with_ids, audit=audit)
            checks.check_method_of_run(method, num_examples, num_epochs)
            self._loss = loss_fn if isinstance(loss_fn, PerExampleLoss) else PerExampleLoss(loss_fn)
            place = device_of(model) if device is None else as_device(device)
        self._user, self.model, self.method, self.num_epochs = user, model, method, num_epochs
        # Only generators that exist now: a sampler that makes its generator in __iter__ also seeds it there.
        self._generator_owners = generator_owners(user)
        candidate_size, scale = batch_size_of(user), method.batch_scale
        agreed = {**numbers, "seed": seed, "audit": audit, **functions, **self._loss.settings()}
        agreed |= {"batch_size": batch_size or candidate_size}
        examples = "number of examples in the data set, whose indices are their ids"
        checks.check_same_on_all_ranks(ranks, method, **agreed, **{examples: num_examples})
        self._num_batches, self._num_candidates = most_on_a_rank(user, method.keep, ranks, num_examples)
        wants = audit or hasattr(method.scorer, "learn_dynamics")
        recorder = Recorder(num_examples) if wants and num_examples else None
        run = Run(method, num_examples or 0, num_epochs=num_epochs, seed=seed, ranks=ranks, recorder=recorder)
        size, self._run, self._follows_model = batch_size or candidate_size, run, device is None
        mixes = not method.schedule.never_on and method.policy.selectivity != 1
        self._options = Options(
            device=place,
            transform=transform,
            pad=pad,
            batch_size=None if size is None else max(1, round(size * scale)),
            batch_tokens=batch_tokens,
            candidate_size=candidate_size,
            passes=batch_size is None and batch_tokens is None and scale == 1,
            drop_last=drops_last(user),
            needs_one_size=size is None and batch_tokens is None and (mixes or method.keep is not None),
        )
        task = Task(model, forward or default_forward, self._loss)
        self.steps = Steps(loader, run, self._options, task, has_ids=with_ids, on_stats=on_stats)
        self._check_targets = TargetCheck()
        self._iteration: weakref.ref[Generator[Any]] | None = None  # the iteration that gives out batches

    # ---- training

    def weights(self, batch: Batch | None = None) -> Tensor:
        """Return the weights of the batch given out last, on its device, for loops that apply them themselves.

        batch: another batch, if the caller takes batches ahead.
        """
        steps, batch = self.steps, self.batch if batch is None else batch
        steps.told.report(steps.step_of(batch), losses=False, weights=True)
        return batch.weights.to(self._options.device, non_blocking=True)

    def loss(self, outputs: Any, targets: Any, batch: Batch | None = None) -> Tensor:
        """Compute the loss of the batch given out last, with its weights, and record each example's loss in the ledger.

        If all weights are 1, the result is loss_fn's own value, bit for bit. If this is called several times for a
        batch, as by SAM or LBFGS, the first call is recorded. A loss_fn of your own that takes `reduction=` and returns
        one number is called a second time by methods that need the loss of each example, with the same random numbers.

        Args:
            outputs: the model's outputs, first argument of loss_fn.
            targets: second argument of loss_fn.
            batch: the batch that the outputs belong to, if the caller takes batches ahead.
        """
        steps, run, step = self.steps, self._run, self.steps.step
        if batch is not None:
            step = steps.step_of(batch)
        elif step is None:
            raise RuntimeError(
                "no training step is under way: call loader.loss inside the loop over the loader, for the batch that "
                "it gave out last. For other batches, such as validation, call your loss function itself"
            )
        else:
            batch = steps.batch
        assert batch is not None
        weights = batch.weights.to(self._options.device, non_blocking=True) if batch.is_weighted else None
        needs_losses, weighting = run.recorder is not None or run.learns_losses, run.policy.weighting
        data = batch.data
        are_given = isinstance(data, list | tuple) and len(data) == 2 and data[1] is targets
        if (needs_losses or weights is not None) and not are_given:
            self._check_targets(data, targets)
        try:
            loss, losses = self._loss.for_training(
                outputs,
                targets,
                weights,
                batch.weights.numel(),
                record=needs_losses,
                may_weigh=weighting != "none",
            )
        except WrongCountError as error:
            raise ValueError(
                f"{error}. loader.loss is for the batch that the loader gave out; for other batches, such as "
                "validation, call your loss function itself"
            ) from None
        if losses is not None and not step.has_losses:
            run.trained(batch, losses, step.number, step.epoch)
            if run.recorder is not None:
                run.recorder.add(batch, outputs, targets, losses, step.epoch)
        steps.told.report(step, losses=True, weights=loss.requires_grad or weights is None)
        return loss

    # ---- iteration

    def __iter__(self) -> Iterator[Any]:
        """Give out one epoch, or the rest of the one that was under way when the state was saved.

        Leaving it early ends the epoch. A look at the first batch, as by `next(iter(loader))`, changes nothing.
        """
        iteration = self._iterate(itself := [])
        itself.append(weakref.ref(iteration))
        return iteration

    def _iterate(self, itself: list[weakref.ref[Generator[Any]]]) -> Generator[Any]:
        """Run one iteration. `itself` holds a weak reference to this very generator, added after it was made."""
        if self._is_iterated:
            raise RuntimeError(
                "another iteration over this loader is still going on: finish it, leave its loop, or close it "
                "(iterator.close()) before the next one begins. For two loops at once, make two loaders"
            )
        self._iteration, steps = itself[0], self.steps
        is_finalizing = sys.is_finalizing  # at interpreter exit this module's own names are gone
        try:
            self.begin()
            while (batch := steps.next()) is not None:
                yield batch.data
                if not torch.is_grad_enabled() or not self.model.training:
                    self._require_training()
        finally:
            if not is_finalizing():  # at interpreter exit parts of torch are gone already
                steps.leave()

    def begin(self, *, ahead: bool = False) -> None:
        """Start the next epoch, or go on with a loaded one, for callers of `steps.next()`; see `Steps.begin`."""
        if self._follows_model:
            self._options.device = device_of(self.model)
        self.steps.begin(ahead=ahead)

    @property
    def _is_iterated(self) -> bool:
        other = self._iteration() if self._iteration is not None else None
        return other is not None and inspect.getgeneratorstate(other) != inspect.GEN_CLOSED

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True.

        It can be saved after any training step. No message is sent between ranks: save it on each, or between epochs
        and in planned ones on rank 0 alone, which loses at most the losses of 63 batches of the other ranks. The order
        of later epochs comes from the DataLoader's generator, which is saved here if there is one, or from torch's
        global random state, which you save. In mid-epoch, random numbers inside workers start anew.
        """
        transform, ranks = self._options.transform, self._run.ranks
        return {
            "version": STATE_VERSION,
            "method": describe(self.method),
            "ranks": {"rank": ranks.rank, "size": ranks.size},
            "batch_size": self._options.batch_size,
            "batch_tokens": self._options.batch_tokens,
            "run": self._run.state_dict(),
            **self.steps.state_dict(),
            "transform": transform.state_dict() if hasattr(transform, "state_dict") else None,
            "generators": [generator.get_state() for generator in self.generators()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. The next iteration finishes the epoch that was under way.

        If the state does not fit this loader and its method, an error says what differs, and nothing is changed.
        """
        options, transform, generators = self._options, self._options.transform, self.generators()
        checks.check_saved(state, self.method, _STATE_KEYS, version=STATE_VERSION, what="loader")
        checks.check_ranks(state, self._run.ranks)
        checks.check_options_of_state(state, options.batch_size, options.batch_tokens, transform, len(generators))
        if self._is_iterated:
            raise RuntimeError(
                "a loop over this loader is under way, and would go on with its own epoch: load the state before the "
                "loop, or leave the loop first (break, or iterator.close())"
            )
        self._run.load_state_dict(state["run"])
        options.batch_size = state["batch_size"]
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        if state["transform"] is not None:
            transform.load_state_dict(state["transform"])
        self.steps.load_state_dict(state)
