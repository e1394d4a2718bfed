"""A loss that selects: one forward pass serves selection and training.

# N = candidates, K = selected
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import describe, differences, short
from selective_backprop.distributed.ranks import seed_of_process
from selective_backprop.forward_reuse.selected_loss import can_reuse_rows, selected_loss
from selective_backprop.losses import NegativeScoresError, PerExampleLoss, require_finite, require_not_negative
from selective_backprop.method import Method, require_method
from selective_backprop.scorers import ForwardScorer
from selective_backprop.types import Selection


@dataclass
class Counts:
    """What a `SelectiveLoss` did so far.

    >>> Counts(batches=2, offered=96, scored=96, trained=32).selectivity
    0.3333333333333333
    """

    batches: int = 0
    """Number of batches."""
    offered: int = 0
    """Number of candidates: all examples of these batches."""
    scored: int = 0
    """Number of candidates in batches that were selected from. The others came while selection was off."""
    trained: int = 0
    """Number of examples trained on. An example that was drawn twice counts twice."""

    @property
    def selectivity(self) -> float:
        """Fraction of the candidates that was trained on."""
        return self.trained / self.offered if self.offered else float("nan")


class SelectiveLoss:
    """Selects within a training step: it scores the whole batch by its training losses, and trains on the selected.

    Your own DataLoader gives out all candidates, and each batch makes one forward pass. The loss is that of the
    selected examples alone, and the backward pass runs on them alone. Make batches 1 / selectivity times larger than a
    training batch should be. Memory is that of training on all candidates. With several ranks (torch.distributed), each
    rank selects from its own batch.

    Call it once for each training batch, and your own loss function for validation.

    Args:
        loss_fn: an nn loss module, a function that takes `reduction=`, or a callable that returns one loss per
            example. If an example has several losses (tokens, pixels, boxes), wrap it to say how they become one:
            `sb.losses.PerExampleLoss(loss_fn, reducer="mean")`.
        method: how to select. It must score every candidate by the model that is trained, such as
            `selective_backprop`, `top_k` and `kath18` do.
        batches_per_epoch: `len(train_loader)`. Methods with a warm-up or a window of the run need it.
        num_epochs: length of the run. Methods with a window of the run need it.
        seed: seed of the generator that selection draws from. Global random state is never touched.

    >>> from torch import nn
    >>> from selective_backprop.methods import top_k
    >>> model, loss_fn = nn.Linear(4, 2), SelectiveLoss(nn.CrossEntropyLoss(), top_k(0.25))
    >>> inputs, targets = torch.randn(32, 4), torch.randint(2, (32,))
    >>> loss_fn(model(inputs), targets).backward()
    >>> loss_fn.counts
    Counts(batches=1, offered=32, scored=32, trained=8)
    """

    def __init__(
        self,
        loss_fn: Callable[..., Tensor],
        method: Method,
        *,
        batches_per_epoch: int | None = None,
        num_epochs: int | None = None,
        seed: int = 0,
    ) -> None:
        self._loss = loss_fn if isinstance(loss_fn, PerExampleLoss) else PerExampleLoss(loss_fn)
        if self._loss.token_share is not None:
            raise ValueError(
                "SelectiveLoss selects whole examples and cannot mask tokens as well: leave out TokenShare"
            )
        _check(method, batches_per_epoch=batches_per_epoch, num_epochs=num_epochs)
        self.method = method
        self.batches_per_epoch, self.num_epochs = batches_per_epoch, num_epochs
        self.policy, self.schedule = copy.deepcopy(method.policy), copy.deepcopy(method.schedule)
        self.generator = torch.Generator().manual_seed(seed_of_process(seed))
        self.counts = Counts()
        """Number of candidates scored and of examples trained on so far."""
        self.selection: Selection | None = None
        """Which examples of the last batch were trained on, with their weights; None before the first batch."""
        self._measure = method.scorer.measure if isinstance(method.scorer, ForwardScorer) else None
        self._by_rows: bool | None = None  # not known before the first selection

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r})"

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss to call backward on: that of the examples that are selected from this batch."""
        found = self._loss.evaluate(outputs, targets)
        if not found.raw.requires_grad:
            raise RuntimeError(
                "SelectiveLoss selects what to train on, but these outputs have no gradient: for validation, call your "
                "loss function itself"
            )
        size = len(found.losses)
        is_on = self.schedule.is_on(*self._next_place())
        if not is_on and not self.schedule.observes_losses:
            self._count(size, _all_of(size), is_on=False)
            return found.own()
        scores = found.losses if self._measure is None else self._measure(outputs, targets).detach()
        # The one wait for the GPU per batch: the backward pass runs on the selected examples only.
        scores = scores.to("cpu", torch.float32)
        require_finite(scores, None, "training loss" if self._measure is None else "score")
        selection = self._select(scores) if is_on else _all_of(size)
        if not is_on:
            self.schedule.observe_losses(scores)
        self._count(size, selection, is_on=is_on)
        if selection.keeps_all(size) and bool((selection.weights == 1).all()):
            return found.own()
        if self._by_rows is None:
            self._by_rows = can_reuse_rows(found.raw)
        return selected_loss(self._loss, outputs, targets, found.raw, selection, by_rows=self._by_rows)

    def _next_place(self) -> tuple[float, int, int | None]:
        """Go on to the next batch. Returns its place in the run, as schedules take it."""
        done, per_epoch = self.counts.batches, self.batches_per_epoch
        epoch, batch_idx = (0, done) if per_epoch is None else divmod(done, per_epoch)
        if batch_idx == 0:
            self.policy.begin_epoch(epoch, self.num_epochs)
        epochs_done = 0.0 if per_epoch is None else done / per_epoch
        self.schedule.advance(epochs_done, batch_idx, self.num_epochs)
        return epochs_done, batch_idx, self.num_epochs

    def _select(self, scores: Tensor) -> Selection:
        self.schedule.observe(scores)
        try:
            return self.policy.select(scores, self.generator)
        except NegativeScoresError:
            require_not_negative(scores, None, "training loss" if self._measure is None else "score")
            raise

    def _count(self, size: int, selection: Selection, *, is_on: bool) -> None:
        self.selection = selection
        self.counts.batches += 1
        self.counts.offered += size
        self.counts.scored += size if is_on else 0
        self.counts.trained += len(selection.positions)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True."""
        return {
            "method": describe(self.method),
            "policy": self.policy.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": self.generator.get_state(),
            "counts": dataclasses.asdict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. If it does not fit, an error says why, and nothing is changed."""
        missing = {"method", "policy", "schedule", "generator", "counts"} - state.keys()
        if missing:
            raise ValueError(f"the state of a SelectiveLoss has {', '.join(sorted(missing))}, but this one has not")
        if found := differences(state["method"], describe(self.method)):
            raise ValueError(
                f"the state was saved with another method than {self.method.name}. These options differ: "
                f"{'; '.join(found)} (the saved value first)"
            )
        policy, schedule, generator = copy.deepcopy(self.policy), copy.deepcopy(self.schedule), torch.Generator()
        try:
            policy.load_state_dict(state["policy"])
            schedule.load_state_dict(state["schedule"])
            generator.set_state(state["generator"])
            counts = Counts(**state["counts"])
        except Exception as error:  # any error: the policy may be the user's own class
            raise ValueError(f"the state of this SelectiveLoss is damaged ({type(error).__name__}: {error})") from error
        self.policy, self.schedule, self.generator, self.counts = policy, schedule, generator, counts
        self.selection = None


def _check(method: Method, *, batches_per_epoch: int | None, num_epochs: int | None) -> None:
    """Raise if the method cannot select within a training pass, or if it needs to know the length of the run."""
    require_method(method)
    scorer, schedule = method.scorer, method.schedule
    if type(scorer) is not ForwardScorer or scorer.scale_factor != 1 or scorer.precision is not None:
        raise ValueError(
            f"{method.name} gets its scores from {short(scorer)}, but SelectiveLoss has no other scores than those of "
            "the training pass: use selective_backprop, top_k or kath18, without scoring=, or a SelectiveLoader"
        )
    if method.groups is not None or method.keep is not None:
        what = "groups of examples" if method.keep is None else "pruned examples"
        raise ValueError(
            f"{method.name} has {what}, but SelectiveLoss does not know which examples a batch holds: use a "
            "SelectiveLoader"
        )
    if method.batch_scale != 1:
        raise ValueError(
            f"{method.name} trains on larger batches than your DataLoader's, but SelectiveLoss trains on a part of "
            "each batch: use a SelectiveLoader"
        )
    for name, value in {"batches_per_epoch": batches_per_epoch, "num_epochs": num_epochs}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    if batches_per_epoch is None and (schedule.warmup_epochs > 0 or method.needs_num_epochs):
        raise ValueError(
            f"{method!r} depends on how many epochs are done: pass batches_per_epoch=len(train_loader) to SelectiveLoss"
        )
    if num_epochs is None and method.needs_num_epochs:
        raise ValueError(f"{method!r} depends on the length of the run: pass num_epochs= to SelectiveLoss")


def _all_of(size: int) -> Selection:
    return Selection(torch.arange(size), torch.ones(size), torch.ones(size, dtype=torch.float64))
