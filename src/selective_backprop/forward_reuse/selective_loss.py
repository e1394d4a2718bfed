"""A loss that selects: one forward pass serves selection and training.

# N = candidates, K = selected
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from selective_backprop.checks import check_saved
from selective_backprop.description import describe, short
from selective_backprop.forward_reuse import rules  # noqa: F401  registers the rules
from selective_backprop.forward_reuse.gradient import take
from selective_backprop.forward_reuse.rows import Rows
from selective_backprop.inference import preserved_rng
from selective_backprop.losses import PerExampleLoss, require_finite
from selective_backprop.method import Method, require_method
from selective_backprop.ranks import Alone, seed_of_process
from selective_backprop.run import Run
from selective_backprop.scorers import ForwardScorer
from selective_backprop.types import Selection

STATE_VERSION = 1
_log = logging.getLogger("selective_backprop")


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

    selects_examples = True  # so that a SelectiveLoader refuses it

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
        _check(method, batches_per_epoch=batches_per_epoch, num_epochs=num_epochs)
        self.method = method
        self.batches_per_epoch, self.num_epochs = batches_per_epoch, num_epochs
        self.run = Run(method, 0, num_epochs=num_epochs, seed=seed_of_process(seed), ranks=Alone())
        """Copies of the method's policy and schedule, and the generator that they draw from."""
        self._measure = method.scorer.measure if isinstance(method.scorer, ForwardScorer) else None
        self.run.score_is = "training loss" if self._measure is None else "score"
        self.counts = Counts()
        """Number of candidates scored and of examples trained on so far."""
        self.selection: Selection | None = None
        """Which examples of the last batch were trained on, with their weights; None before the first batch."""
        self._by_rows: bool | None = None  # not known before the first selection

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method!r})"

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss to call backward on: that of the examples that are selected from this batch."""
        if not _with_gradient(outputs):
            raise RuntimeError(
                "SelectiveLoss selects what to train on, but these outputs have no gradient: for validation, call your "
                "loss function itself"
            )
        schedule = self.run.schedule
        if not schedule.is_on(*self._next_place()):
            loss, losses = self._loss.for_training(outputs, targets, None)
            assert losses is not None
            if schedule.observes_losses:
                losses = losses.to("cpu", torch.float32)
                require_finite(losses, None, self.run.score_is)
                schedule.observe_losses(losses)
            self._count(len(losses), _all_of(len(losses)), is_on=False)
            return loss
        scores = self._score(outputs, targets)
        selection = self.run.select(scores, None)
        weights = selection.weights if bool((selection.weights != 1).any()) else None
        self._count(len(scores), selection, is_on=True)
        if not selection.keeps_all(len(scores)):
            outputs, targets = self._selected(outputs, targets, selection.positions, len(scores))
        if not len(selection.positions):
            return torch.stack([part.sum() for part in _with_gradient(outputs)]).sum()  # 0
        return self._loss.for_training(outputs, targets, weights, len(selection.positions), record=False)[0]

    def _score(self, outputs: Any, targets: Any) -> Tensor:
        """Score all candidates of the batch: (N,) on the CPU."""
        with torch.no_grad(), preserved_rng(_with_gradient(outputs)[0].device):
            measure = self._measure or self._loss.per_example
            # The one wait for the GPU per batch: the backward pass runs on the selected examples only.
            scores = measure(outputs, targets).detach().to("cpu", torch.float32)
        require_finite(scores, None, self.run.score_is)
        return scores

    def _selected(self, outputs: Any, targets: Any, positions: Tensor, size: int) -> tuple[Any, Any]:
        """Take the selected rows of outputs and targets. The backward pass of outputs runs on these rows alone."""
        if not any(part.dim() and len(part) == size for part in _with_gradient(outputs)):
            raise ValueError(
                f"SelectiveLoss takes examples along the first dimension of the model's outputs, but none has {size} "
                f"rows, one per example: got {[tuple(part.shape) for part in _with_gradient(outputs)]}"
            )
        device = _with_gradient(outputs)[0].device
        if self._by_rows is None:
            self._by_rows = _can_reuse_rows(outputs)
        index, place = (part.to(device, non_blocking=True) for part in torch.unique(positions, return_inverse=True))
        by_rows, rows = self._by_rows and 0 < len(index) < size, Rows(index, size)

        def taken(part: Any) -> Any:
            if not isinstance(part, Tensor) or not part.dim() or len(part) != size:
                return part
            if by_rows and part.requires_grad and part.device == device:
                return take(part, rows, place)
            return part.index_select(0, positions.to(part.device, non_blocking=True))

        return tree_map(taken, outputs), tree_map(taken, targets)

    def _next_place(self) -> tuple[float, int, int | None]:
        """Go on to the next batch. Returns its place in the run, as schedules take it."""
        done, per_epoch = self.counts.batches, self.batches_per_epoch
        epoch, batch_idx = (0, done) if per_epoch is None else divmod(done, per_epoch)
        if batch_idx == 0:
            self.run.policy.begin_epoch(epoch, self.num_epochs)
        epochs_done = 0.0 if per_epoch is None else done / per_epoch
        self.run.schedule.advance(epochs_done, batch_idx, self.num_epochs)
        return epochs_done, batch_idx, self.num_epochs

    def _count(self, size: int, selection: Selection, *, is_on: bool) -> None:
        self.selection = selection
        self.counts.batches += 1
        self.counts.offered += size
        self.counts.scored += size if is_on else 0
        self.counts.trained += len(selection.positions)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume exactly: plain data and tensors, loadable with weights_only=True."""
        return {
            "version": STATE_VERSION,
            "method": describe(self.method),
            "run": self.run.state_dict(),
            "counts": dataclasses.asdict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved. If it does not fit, an error says why, and nothing is changed."""
        check_saved(state, self.method, {"method", "run", "counts"}, version=STATE_VERSION, what="loss")
        if state["counts"].keys() != vars(self.counts).keys():
            raise ValueError(f"this state is damaged: it counts {', '.join(state['counts'])}")
        self.counts, self.selection = Counts(**state["counts"]), None
        self.run.load_state_dict(state["run"])


def _with_gradient(outputs: Any) -> list[Tensor]:
    return [part for part in tree_leaves(outputs) if isinstance(part, Tensor) and part.requires_grad]


def _can_reuse_rows(outputs: Any) -> bool:
    """Whether row gradients can go back from outputs. A compiled backward pass cannot take them; this is logged."""
    seen: set[Any] = set()
    waiting: list[Any] = [part.grad_fn for part in _with_gradient(outputs)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith("CompiledFunction"):
            _log.warning(
                "forward reuse: a part of your model is compiled, so the backward pass goes over all candidates. "
                "Results are exact, but it is not faster. For a faster backward pass, do not compile the model"
            )
            return False
        seen.add(node)
        waiting += [inner for inner, _ in node.next_functions]
    return True


def _check(method: Method, *, batches_per_epoch: int | None, num_epochs: int | None) -> None:
    """Raise if the method cannot select within a training pass, or if it needs to know the length of the run."""
    require_method(method)
    scorer, schedule = method.scorer, method.schedule
    is_plain = type(scorer) is ForwardScorer and scorer.scale_factor == 1
    refused = {
        f"gets its scores from {short(scorer)}": not is_plain,
        "has groups of examples": method.groups is not None,
        "has pruned examples": method.keep is not None,
        "trains on larger batches": method.batch_scale != 1,
    }
    for reason in (reason for reason, applies in refused.items() if applies):
        raise ValueError(
            f"{method.name} {reason}, but SelectiveLoss scores each batch in its training pass, knows no ids, and "
            "trains on a part of the batch: use selective_backprop, top_k or kath18, without scoring=, or a "
            "SelectiveLoader"
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
