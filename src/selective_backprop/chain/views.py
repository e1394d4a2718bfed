"""What users read of a SelectiveLoader: its length, progress, parts, statistics, and the attributes of their loader."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from selective_backprop.chain.ids import Options
from selective_backprop.chain.load import Load
from selective_backprop.chain.steps import Steps
from selective_backprop.chain.stream import UserStream
from selective_backprop.chain.user_loader import generators_of
from selective_backprop.ledger import Ledger
from selective_backprop.method import Method
from selective_backprop.run import Run
from selective_backprop.schedules import Schedule
from selective_backprop.stats import Stats
from selective_backprop.types import Batch, Policy, Scorer

_logger = logging.getLogger(__name__)
_OF_THE_LOADER = {
    *("dataset", "sampler", "batch_sampler", "drop_last", "collate_fn", "generator", "timeout", "pin_memory"),
    *("num_workers", "prefetch_factor", "persistent_workers", "worker_init_fn", "multiprocessing_context", "in_order"),
}


class LoaderView(ABC):
    """What users read of a SelectiveLoader. Other attributes are those of their loader: `loader.dataset`."""

    method: Method
    """How to select."""
    model: nn.Module
    """The model being trained."""
    num_epochs: int | None
    """Length of the run; None if not known."""
    steps: Steps
    """Gives out batches one by one, for frameworks that count them."""
    _user: Any  # the user's loader
    _generator_owners: list[Any]  # it and its samplers, as far as they have a generator
    _run: Run
    _options: Options
    _num_batches: int | None  # the most candidate batches that an epoch can have on one rank
    _num_candidates: int | None  # the most candidates
    _has_warned_of_eval = False

    def __repr__(self) -> str:
        batches, size = self._batches_of_epoch, self._options.candidate_size
        count = "candidate batches" if batches is None else f"{batches:,} candidate batches"
        sizes = "" if size is None else f" of {size}"
        training = f", training batches of {self.batch_size}" if self.batch_size not in (None, size) else ""
        return f"{type(self).__name__}({self.method!r}, {count}{sizes}{training}, epoch {self.epoch})"

    def __len__(self) -> int:
        """Return the number of batches of the epoch under way if it is planned, else the most that an epoch can give.

        A method that scores candidates usually gives about selectivity times as many. The number is an upper bound,
        because frameworks stop an epoch after len() batches. For learning rates use `step_by_progress`.
        """
        chain, options = self.steps.chain, self._options
        if isinstance(chain, Load) and len(chain):
            return len(chain)
        batches, candidates = self._batches_of_epoch, self._num_candidates
        if batches is None:
            raise TypeError(
                "your loader has no length, so SelectiveLoader has none: pass sb.WithLength(loader, num_batches) to "
                "SelectiveLoader, with the number of candidate batches per epoch"
            )
        if candidates is None and not options.passes and self.method.batch_scale == 1:
            raise TypeError(
                "the number of training batches is not known: it follows from the sizes of your loader's batches, "
                "which it does not tell, or with batch_tokens= from lengths. If its batches have one size, give your "
                "loader an attribute batch_size"
            )
        if options.batch_tokens is not None:
            assert candidates is not None
            return candidates  # each may be a batch of its own, if it is long
        if not options.batch_size or not candidates or options.passes:
            return batches
        most, rest = divmod(candidates, options.batch_size)
        return most + (rest > 0 and not options.drop_last)

    @property
    def _batches_of_epoch(self) -> int | None:
        source = self.steps.source
        return source.num_batches if isinstance(source, UserStream) else self._num_batches

    @property
    def epoch(self) -> int:
        """Number of completed epochs. During an epoch this is its number, from 0."""
        return self._run.epoch

    @property
    def batch_size(self) -> int | None:
        """Examples in a full training batch; with batch_tokens=, the most that there can be.

        None before the first batch if your loader does not say its batch size.
        """
        return self._options.batch_tokens or self._options.batch_size

    @property
    def stats(self) -> Stats:
        """Counts of examples, of all ranks together, and seconds by phase."""
        return self._run.stats

    @property
    def ledger(self) -> Ledger:
        """What is known about each example; empty if your loader has no ids.

        It is brought up to date when it is read here. With several ranks it has what they told each other last: every
        64 batches, and at the end of an epoch.
        """
        return self._run.whole_ledger()

    @property
    def policy(self) -> Policy:
        """This loader's own copy of the method's policy, with its current state."""
        return self._run.policy

    @property
    def scorer(self) -> Scorer:
        """This loader's own copy of the method's scorer, with its current state."""
        return self._run.scorer

    @property
    def schedule(self) -> Schedule:
        """This loader's own copy of the method's schedule, with its current state, such as the tau of `kath18`."""
        return self._run.schedule

    @property
    def epoch_progress(self) -> float:
        """Fraction of the current epoch's candidates offered so far, from 0 to 1."""
        return self.steps.fraction

    @property
    def epochs_done(self) -> float:
        """Epochs offered so far, with the fraction of the current one: 2.5 in the middle of the third epoch."""
        return self._run.epoch + self.steps.fraction

    @property
    def progress(self) -> float:
        """Fraction of the run's candidates offered so far, from 0 to 1. Learning rate schedules should follow it."""
        if self.num_epochs is None:
            raise ValueError("progress is a fraction of the run: pass num_epochs= to SelectiveLoader")
        if self._batches_of_epoch is None:
            raise ValueError(
                "progress within an epoch is not known, because your loader has no length: pass "
                "sb.WithLength(loader, num_batches) to SelectiveLoader, with the number of candidate batches per epoch"
            )
        return min(1.0, self.epochs_done / self.num_epochs)

    @property
    def dynamics(self) -> Any:
        """What `audit=True` has recorded. With several ranks, all must read this: it is the log of all ranks."""
        if self._run.recorder is None:
            raise RuntimeError(
                "this loader recorded no dynamics: pass audit=True to SelectiveLoader when the run begins"
            )
        return self._run.recorder.whole(self._run.ranks)

    @property
    def batch(self) -> Batch:
        """The batch given out last, with its ids, weights and probabilities."""
        if self.steps.batch is None:
            raise RuntimeError("no batch has been given out yet")
        return self.steps.batch

    def with_bar(self, bar: Any) -> Iterator[Any]:
        """Iterate like `for batch in loader`, with a progress bar that fills up as the epoch's candidates are offered.

        Write `for inputs, targets in loader.with_bar(tqdm()):`. `tqdm(loader)` reads `len(loader)` before the epoch is
        planned, when it is the most that the epoch can give, so it would stop early.

        Args:
            bar: `tqdm()` or anything else with `update(n)` and `close()`. It reaches its `total`, whatever that counts:
                with `tqdm(total=len(dataset))`, the bar counts examples. A `total` of None is set to the number of
                candidate batches. If your loader has no length, the bar counts training batches.
        """
        length = self._batches_of_epoch
        if length is not None and getattr(bar, "total", None) is None:
            bar.total = length
        epoch, shown = self.epoch, 0
        try:
            for batch in self:
                yield batch
                reached = shown + 1 if length is None else round(self.steps.fraction * bar.total)
                bar.update(reached - shown)
                shown = reached
            if length is not None and self.epoch > epoch:
                bar.update(bar.total - shown)
        finally:
            bar.close()

    def generators(self) -> list[torch.Generator]:
        """Return the random generators of your loader and its samplers. Their states are saved with this loader's."""
        return generators_of(self._generator_owners)

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Give out one epoch."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a SelectiveLoader cannot be copied or pickled: a copy would score with a copy of your model, and go on "
            "with the same epoch. Make the loader in the process that trains; to save it, save loader.state_dict()"
        )

    def _require_training(self) -> None:
        """Raise if the loop does not train. A look at the first batch never comes here."""
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "this loop runs without gradients (torch.no_grad or inference_mode), but SelectiveLoader is for "
                "training: it gives out selected examples only, and counts them as trained on. To evaluate, or to "
                "update BatchNorm statistics, loop over your own DataLoader"
            )
        if not self._has_warned_of_eval and not any(module.training for module in self.model.modules()):
            self._has_warned_of_eval = True
            _logger.warning(
                "the whole model is in eval mode in a loop over SelectiveLoader, which is for training: call "
                "model.train() before the loop. To evaluate, loop over your own DataLoader"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set what belongs to the user's loader, which would not notice."""
        if name in _OF_THE_LOADER:
            raise AttributeError(
                f"{name} belongs to your DataLoader and can only be read here: set it when you make the DataLoader"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Look up a name that SelectiveLoader does not have on the user's loader."""
        if not name.startswith("_") and name not in ("steps", "method", "num_epochs"):  # these may not be set yet
            try:
                return getattr(self._user, name)
            except AttributeError:
                pass
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and neither has your loader")
