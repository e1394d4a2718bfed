"""Losses per example from any loss function, the weighted training loss, and the default forward pass.

# N = examples in the batch; raw losses may have more dimensions (tokens, pixels, boxes)
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selective_backprop.copying import LaterErrors
from selective_backprop.description import checksum
from selective_backprop.inference import (
    preserved_rng,
    private_copy,
    random_states,
    set_random_states,
    unwrap,
    version_of,
)
from selective_backprop.options import require_numbers

Reducer = Callable[..., Tensor]
"""A function from losses (N, ...) to (N,). If it takes a second argument, that is the mask of losses that count, such
as those of tokens that are not padding; None if all count."""


def _mean(raw: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return raw.flatten(1).mean(1)
    return (raw * mask).flatten(1).sum(1) / mask.flatten(1).sum(1).clamp(min=1)


REDUCERS: dict[str, Reducer] = {
    "mean": _mean,
    "sum": lambda raw: raw.flatten(1).sum(1),
    "max": lambda raw: raw.flatten(1).amax(1),
}


def mean_of_largest(count: int) -> Reducer:
    """Make a reducer that takes the mean of the `count` largest losses of an example, or of all if it has fewer.

    With it, a long sequence with a few hard tokens scores as high as a short one.

    >>> mean_of_largest(2)(torch.tensor([[0.1, 3.0, 1.0], [0.2, 0.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 0, 0]]))
    tensor([2.0000, 0.2000])
    """
    require_numbers(count=count)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def reduce(raw: Tensor, mask: Tensor | None) -> Tensor:
        raw = raw.flatten(1)
        mask = torch.ones_like(raw, dtype=torch.bool) if mask is None else mask.flatten(1).bool()
        largest = raw.masked_fill(~mask, 0).topk(min(count, raw.shape[1])).values
        return largest.sum(1) / mask.sum(1).clamp(1, count)

    return reduce


def token_cross_entropy(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy of logits (..., V) and labels (...). The classes are the last axis, as in sequence models.

    >>> token_cross_entropy(torch.zeros(2, 3, 8), torch.tensor([[1, 2, -100], [3, -100, -100]])).exp()
    tensor(8.)
    """
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"token_cross_entropy takes logits, a tensor, and got a {type(logits).__name__}: if the model returns more "
            "than logits, pass forward= to the loader, such as forward=lambda model, batch: (model(*batch)[0], "
            "batch[1]), and pass the logits to loader.loss"
        )
    flat = logits.float().flatten(0, -2)  # float32, because losses in half precision are too coarse to rank
    losses = F.cross_entropy(
        flat, labels.flatten(), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return losses.view(labels.shape) if reduction == "none" else losses


class WrongCountError(ValueError):
    """The loss function returned losses for another number of examples than the batch has."""


class Evaluation(NamedTuple):
    """The result of the user's loss on a training batch: losses without reduction, and the user's own reduced loss."""

    raw: Tensor
    """(N, ...) losses without reduction, with their graph."""
    losses: Tensor
    """(N,) detached: the loss of each example."""
    call: Callable[[], Tensor]
    """Calls the user's loss."""

    def own(self) -> Tensor:
        """Return the scalar that the user's loss would have returned, bit for bit, with its graph."""
        loss = self.call()
        return loss if loss.dim() == 0 else loss.mean()


class PerExampleLoss:
    """Wraps the user's loss function, and computes one loss per example or the loss to train on.

    A loss may draw random numbers, count its calls or update buffers. So a training step calls it once, as in plain
    training, and a selection pass never calls the original. If a second call cannot be avoided, it uses a copy of the
    loss module and the same random numbers, and leaves no trace. torch's own losses have no state, so they need no
    copy. For cross-entropy, the costly part is computed only once.

    Args:
        loss_fn: an nn loss module (its reduction does not matter), a function that takes `reduction=`, or a
            callable that returns one loss per example.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean", "sum",
            "max", or a function from (N, ...) to (N,). "mean" leaves out targets that loss_fn ignores by its
            ignore_index, such as padding. A function can do so if it takes the mask as a second argument. Without a
            reducer, losses are averaged if loss_fn has reduction="mean" and the targets are as many real numbers, as
            with `nn.MSELoss` on images or `nn.BCEWithLogitsLoss` on several labels.

    >>> loss = PerExampleLoss(nn.CrossEntropyLoss())
    >>> loss.per_example(torch.zeros(2, 4), torch.tensor([0, 1])).shape
    torch.Size([2])
    """

    def __init__(self, loss_fn: Callable[..., Tensor], reducer: str | Reducer | None = None) -> None:
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, got {type(loss_fn).__name__}")
        if isinstance(loss_fn, type):
            raise TypeError(
                f"loss_fn got the class {loss_fn.__name__}: forgot the parentheses? Pass {loss_fn.__name__}()"
            )
        _require_two_arguments(loss_fn)
        if hasattr(loss_fn, "selects_examples"):
            raise TypeError(
                "a SelectiveLoss selects by itself and needs no SelectiveLoader, whose statistics and audit would "
                "count every candidate as trained on: use it with your own DataLoader, or pass your own loss here"
            )
        if isinstance(reducer, str) and reducer not in REDUCERS:
            raise ValueError(f"reducer must be one of {', '.join(REDUCERS)} or a function, got {reducer!r}")
        self.loss_fn = loss_fn
        self.reducer: Reducer | None = REDUCERS[reducer] if isinstance(reducer, str) else reducer
        self._module = loss_fn if isinstance(loss_fn, nn.Module) else None
        self._has_reduction = _has_reduction(loss_fn)
        self._is_pure = _is_torchs_own(loss_fn)
        self._cross_entropy = _cross_entropy_options(loss_fn) if self._is_pure else None
        self._ignore_index = _ignore_index(loss_fn)
        self._errors = LaterErrors()
        self._reducer_takes_mask = self.reducer is not None and _takes_mask(self.reducer)
        self._mean_is_known = False  # whether it was looked at what the loss divides by
        self.writes_state: bool | None = None
        """Whether the loss is a module that changes its buffers; None before the first selection pass."""

    def settings(self) -> dict[str, Any]:
        """Return the loss and its options by name, as plain data: what must be the same on all ranks.

        >>> PerExampleLoss(nn.CrossEntropyLoss(label_smoothing=0.1)).settings()["label_smoothing of loss_fn"]
        0.1
        """
        loss, options = self.loss_fn, dict[str, Any]()
        while isinstance(loss, functools.partial):
            options, loss = loss.keywords | options, loss.func
        if isinstance(loss, nn.Module):
            options = {**vars(loss), **dict(loss.named_buffers())}
        plain = {name: checksum(value) if isinstance(value, Tensor) else value for name, value in options.items()}
        return {"loss_fn": getattr(loss, "__qualname__", type(loss).__qualname__), "reducer": self.reducer} | {
            f"{name} of loss_fn": value for name, value in plain.items() if isinstance(value, int | float | str)
        }

    @property
    def module(self) -> nn.Module | None:
        """The user's loss, if it is a module that may have a state."""
        return None if self._is_pure else self._module

    def per_example(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Tensor:
        """Compute one loss per example, shape (N,), for scoring. The user's loss module is not changed.

        A loss that draws random numbers takes them from the global random states. The caller must preserve these.
        """
        private = self._private()
        raw = self._unreduced(private)(outputs, targets)
        if self.writes_state is None:  # only once per run, so waiting for the GPU does not matter
            self.writes_state = self.module is not None and not _same_buffers(private, self.module)
        return self._reduce(raw, targets, num_examples)

    def evaluate(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Evaluation:
        """Compute the losses of a training batch, with their graph."""
        shares = self._cross_entropy is not None
        if shares and (found := _cross_entropy(self._cross_entropy, outputs, targets)) is not None:
            raw, shared = found
            return Evaluation(raw, self._reduce(raw.detach(), targets, num_examples), shared)
        if not self._has_reduction or self._is_pure:
            raw = self._seen(outputs, targets)
            own = (lambda: raw) if not self._has_reduction else (lambda: self.loss_fn(outputs, targets))
        else:
            device = _device_of(outputs)
            before, states = self._private(), random_states(device)
            versions = _versions(outputs, targets)
            raw = self._seen(outputs, targets)
            is_changed = _versions(outputs, targets) != versions

            def own() -> Tensor:
                if is_changed:
                    raise ValueError(
                        "loss_fn writes to the outputs or targets that it gets, and must be called twice here: for the "
                        "loss of each example, and for your own loss of the batch. Let it leave them as they are, as "
                        "with `outputs = outputs / 2` in place of `outputs /= 2`, or return one loss per example, "
                        "without reduction="
                    )
                with preserved_rng(device):
                    set_random_states(states, device)
                    return before(outputs, targets)

        return Evaluation(
            raw, self._reduce(raw.detach() if isinstance(raw, Tensor) else raw, targets, num_examples), own
        )

    def for_training(
        self,
        outputs: Any,
        targets: Any,
        weights: Tensor | None,
        num_examples: int | None = None,
        *,
        record: bool = True,
        may_weigh: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the scalar to call backward on, and the detached loss of each example.

        Without weights (None), the scalar is the user's own loss, bit for bit. With weights w, each example's part of
        it is multiplied by its weight. If the loss divides by the number of examples, the result is sum(w l) / N. If it
        divides by numbers c that examples bring along, as class weights or tokens that are not ignored, an example that
        stands for w others brings along w c: the result is mean(w) sum(w l) / sum(w c). If it is neither, this raises
        a ValueError.

        Args:
            outputs: first argument of the loss.
            targets: second argument of the loss.
            weights: (N,) weight of each example; None if all are 1.
            num_examples: N, to check the number of losses.
            record: whether the loss of each example is needed. If not, it is None where it would take a second call, or
                where loss_fn gives one number for the whole batch.
            may_weigh: whether later batches may have weights. Then the first one raises the error.
        """
        must_check = may_weigh and not self._mean_is_known
        if weights is None and not record and not self._is_pure and not must_check:
            loss = self.loss_fn(outputs, targets)
            is_reduced = self._has_reduction or (isinstance(loss, Tensor) and loss.dim() == 0)
            losses = None if is_reduced else self._reduce(loss, targets, num_examples).detach()
            return loss.mean() if loss.dim() else loss, losses
        found = self.evaluate(outputs, targets, num_examples)
        if weights is not None:
            return self._weighted(found, targets, weights), found.losses
        loss = found.own()
        if must_check:
            self._weighted(found._replace(call=lambda: loss.detach()), targets, torch.ones_like(found.losses))
        return loss, found.losses

    def _weighted(self, found: Evaluation, targets: Any, weights: Tensor) -> Tensor:
        """Find out how the user's loss makes one number of the losses without reduction, and do it with weights."""
        self._mean_is_known, raw = True, found.raw
        rows = weights.to(raw).view(-1, *[1] * (raw.dim() - 1))
        parts, plain, result = raw * rows, raw.detach(), (raw * rows).mean()
        if not self._has_reduction:
            return result
        with torch.no_grad():
            own = found.own()
        mask, counts = self._mask(raw, targets), self._counts(raw, targets)
        means: list[Callable[[Tensor], Tensor]] = [torch.mean, torch.sum, lambda values: values.sum() / len(values)]
        if mask is not None and raw.dim() > 1:
            means.append(lambda values: _mean(values, mask).mean())
        ways = [(mean(plain), mean(plain.abs()), mean(parts)) for mean in means]
        if counts is not None:
            total = counts.sum()
            weighted = parts.sum() * rows.mean() / (rows * counts).sum().clamp(min=torch.finfo(raw.dtype).tiny)
            ways.append((plain.sum() / total, plain.abs().sum() / total, weighted))
        is_known, nearest = ~own.isfinite() | (plain == 0).all(), torch.full_like(own, float("inf"))
        # torch.where and not if: which way it is need not be waited for. In half precision several may fit.
        for value, size, weighted in ways:
            fits, distance = _is_close(own, value, size), (own - value).abs()
            is_nearest = fits & (distance <= nearest)
            is_known, nearest = is_known | fits, torch.where(is_nearest, distance, nearest)
            result = torch.where(is_nearest, weighted, result)
        self._errors.add(torch.stack([is_known.to(own), own, plain.mean().to(own)]), _unknown_mean)
        return result

    def _seen(self, outputs: Any, targets: Any) -> Tensor:
        """Compute losses without reduction with the user's own module, which may update its state."""
        module: Any = self._module
        if module is None or not hasattr(module, "reduction") or self._is_pure:
            return self._unreduced(self.loss_fn)(outputs, targets)
        reduction, module.reduction = module.reduction, "none"
        try:
            result: Tensor = module(outputs, targets)
            return result
        finally:
            module.reduction = reduction

    def _private(self) -> Callable[..., Tensor]:
        """Return a copy of the loss in its current state, so that calls do not change the original."""
        module = self.module
        return self.loss_fn if module is None else private_copy(module)

    def _unreduced(self, loss_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the loss without its reduction. A module is copied, not changed."""
        if isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction"):
            module: Any = copy.copy(loss_fn)  # shares parameters and buffers
            module.reduction = "none"
            return module  # type: ignore[no-any-return]
        return functools.partial(loss_fn, reduction="none") if self._has_reduction else loss_fn

    def _reduce(self, raw: Tensor, targets: Any, num_examples: int | None) -> Tensor:
        if not isinstance(raw, Tensor):
            raise TypeError(f"loss_fn must return a tensor with one loss per example, got {type(raw).__name__}")
        if raw.dim() == 0:
            raise ValueError(
                "loss_fn returned a single number for the whole batch, but one loss per example is needed, to score "
                "examples or to weight them: let it return the losses without reduction, as "
                "F.cross_entropy(..., reduction='none') does, or take a keyword argument `reduction`. A contrastive "
                "loss with in-batch negatives has no loss per example. Where there is none, use sb.repeated_random"
            )
        rows = len(raw) if num_examples is None else num_examples
        if len(raw) != rows:
            hint = ", maybe one per token: let it return them in the shape of the targets, one row per example"
            hint = hint if raw.dim() == 1 and rows and len(raw) % rows == 0 else ""
            raise WrongCountError(f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples{hint}")
        if self.reducer is not None and raw.dim() > 1:
            raw = self.reducer(raw, self._mask(raw, targets)) if self._reducer_takes_mask else self.reducer(raw)
        elif raw.numel() != rows and _is_mean_of_all(self.loss_fn, raw, targets):
            raw = _mean(raw, None)
        if raw.numel() != rows:
            is_square = raw.shape == (rows, rows)  # a regression's usual mistake, and its mean would be wrong
            raise ValueError(
                f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples: make them one per example, "
                f"with sb.losses.PerExampleLoss(loss_fn, reducer), where reducer is a function, or one of "
                f"{', '.join(map(repr, REDUCERS))}"
                + (f". But if outputs are ({rows}, 1) and targets ({rows},), make their shapes equal first" * is_square)
            )
        return raw if raw.dim() == 1 else raw.reshape(rows)

    def _mask(self, raw: Tensor, targets: Any) -> Tensor | None:
        """Return which losses count; None if all do."""
        if not isinstance(targets, Tensor):  # labels, perhaps with a mask, in a tuple or dict
            leaves = (leaf for leaf in torch.utils._pytree.tree_leaves(targets) if isinstance(leaf, Tensor))
            leaves = (leaf.char() - 1 if leaf.dtype == torch.bool else leaf for leaf in leaves)  # False is negative
            leaves = (leaf for leaf in leaves if leaf.shape == raw.shape)
            masks = [_not_ignored(raw.detach(), leaf) for leaf in leaves if _is_integer(leaf) and raw.dim() > 1]
            return functools.reduce(torch.logical_and, masks) if masks else None
        if targets.shape != raw.shape:
            return None
        if self._ignore_index is not None:
            return targets != self._ignore_index
        return _not_ignored(raw.detach(), targets) if _is_integer(targets) and raw.dim() > 1 else None

    def _counts(self, raw: Tensor, targets: Any) -> Tensor | None:
        """Return what each loss adds to the number that cross-entropy divides by. None if it divides by the number."""
        mask, weights = self._mask(raw, targets), _class_weights(self.loss_fn)
        if weights is None or not _is_integer(targets) or targets.shape != raw.shape:
            return None if mask is None else mask.to(raw)
        counts = weights.to(raw)[targets.long().clamp(0, len(weights) - 1)]  # an ignored target may be no class
        return counts if mask is None else counts * mask


def _versions(*values: Any) -> list[int]:
    """How often each tensor in the values was written to."""
    leaves = torch.utils._pytree.tree_leaves(values)
    return [version_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def _unknown_mean(values: Tensor) -> ValueError | None:
    is_known, own, mean = values.tolist()
    if is_known:
        return None
    return ValueError(
        f"loss_fn gives {own:.6g} for the batch, which is neither the mean of its losses without reduction, "
        f"{mean:.6g}, nor their sum, and the method gives examples weights. What to divide the weighted losses by is "
        "not known, or a term that is no mean would get lost: let loss_fn return one loss per example, without "
        "reduction=, whose mean is trained on. Class weights are known from nn.CrossEntropyLoss(weight=...) itself"
    )


def _is_close(one: Tensor, other: Tensor, size: Tensor) -> Tensor:
    """Whether numbers are the same up to rounding. size: that of the other one if nothing in it cancels."""
    coarse = max(torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    return (one - other).abs() <= min(100 * coarse, 0.03) * size


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _is_integer(targets: Any) -> bool:
    return isinstance(targets, Tensor) and targets.dtype in _INTEGERS


def _not_ignored(losses: Tensor, targets: Tensor) -> Tensor:
    """Find which losses count, if the function that computed them does not tell its ignore_index.

    Negative targets and 255, the usual marks of what is no class, are ignored if all their losses are zero; 1 and -1
    alone are signs, and count. Any other loss of zero may also be a perfect prediction. So a class is taken for the
    ignored one only if it alone has losses of zero, and has no others. Nothing here waits for the GPU.
    """
    is_zero, is_mark = losses == 0, (targets < 0) | (targets == 255)
    are_signs = (targets.abs() == 1).all()
    marked = is_mark & (is_zero | ~is_mark).all()
    value = torch.where(is_zero, targets, torch.iinfo(targets.dtype).max).amin()
    is_value = targets == value
    return are_signs | ~(marked | (is_value & (is_value == is_zero).all()))


def as_numbers(values: Any, what: str) -> Tensor:
    """Turn the user's numbers into a tensor without its graph. what: what they are, for the error.

    >>> as_numbers([[1.0, 0.0], [1.0]], "rewards")
    Traceback (most recent call last):
    ...
    ValueError: rewards must be numbers, and as many in each row, got [[1.0, 0.0], [1.0]]
    """
    try:
        found = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError):  # words, None, or rows of different lengths
        found = torch.empty(0, dtype=torch.complex64)
    if found.is_complex():
        raise ValueError(f"{what} must be numbers, and as many in each row, got {values!r:.100}")
    return found


def as_ids(values: Any, what: str) -> Tensor:
    """Turn the user's whole numbers into an int64 tensor on the CPU. what: what they are, for the error.

    >>> as_ids([3, 1], "ids")
    tensor([3, 1])
    """
    found = as_numbers(values, what)
    if found.numel() and (found.is_floating_point() or found.dtype == torch.bool):
        raise ValueError(f"{what} must be whole numbers, got {values!r:.100}")
    return found.to("cpu", torch.int64)


def require_finite(losses: Tensor, ids: Tensor | None, what: str) -> None:
    """Raise at a NaN or infinite loss, and name the examples.

    what: what the numbers are, for the error.
    """
    # A finite sum means that all are finite, and takes a fifth of the time of checking each.
    if math.isfinite(float(losses.sum())) or bool(torch.isfinite(losses).all()):
        return
    raise ValueError(
        f"not finite: {what} is {_named(losses, ~torch.isfinite(losses), ids)}. Training has diverged or these "
        "examples are broken: look at them, lower the learning rate, or clip gradients"
    )


class NegativeScoresError(ValueError):
    """Scores are negative, and the policy draws in proportion to them."""


def require_not_negative(scores: Tensor, ids: Tensor | None, what: str) -> None:
    """Raise at a negative score, for policies that draw in proportion to scores. Names the examples and alternatives.

    what: what the numbers are, for the error.
    """
    if not bool((scores < 0).any()):
        return
    raise NegativeScoresError(
        f"negative: {what} is {_named(scores, scores < 0, ids)}. Examples are drawn in proportion to it, so it must be "
        ">= 0. Use selective_backprop, top_k or ledger_backprop, which take losses of any sign, or a loss that cannot "
        "be negative"
    )


def _named(values: Tensor, is_bad: Tensor, ids: Tensor | None) -> str:
    """Name the first bad values, and the examples that have them."""
    rows = is_bad.nonzero().flatten()
    some = ", ".join(f"{value:.4g}" for value in values[rows[:5]].tolist())
    where = f"positions {rows[:5].tolist()} of the batch" if ids is None else f"ids {ids[rows[:5]].tolist()}"
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"{some} for the examples with {where}{more}"


def _same_buffers(one: Any, other: nn.Module) -> bool:
    ones, others = dict(one.named_buffers()), dict(unwrap(other).named_buffers())
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


def _has_reduction(loss_fn: Callable[..., Tensor]) -> bool:
    """Whether the loss can be called without its reduction."""
    is_module = isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction")
    return is_module or "reduction" in _signature(loss_fn).parameters


def _is_mean_of_all(loss_fn: Callable[..., Tensor], raw: Tensor, targets: Any) -> bool:
    """Whether the loss is the mean of numbers that all count, one for each number of the targets.

    Whole numbers are labels of tokens or pixels, of which some may be ignored. If the shapes differ, outputs (N, 1) may
    have met targets (N,).
    """
    if not isinstance(targets, Tensor) or targets.shape != raw.shape or _is_integer(targets):
        return False
    parameter = _signature(loss_fn).parameters.get("reduction")
    return getattr(loss_fn, "reduction", None if parameter is None else parameter.default) == "mean"


def _is_torchs_own(loss_fn: Callable[..., Tensor]) -> bool:
    """Whether the loss is torch's own, without random numbers or state. A user's subclass of it may have both."""
    if isinstance(loss_fn, nn.Module):
        is_plain = type(loss_fn).__module__ == "torch.nn.modules.loss" and not loss_fn._forward_hooks
        is_plain = is_plain and not loss_fn._forward_pre_hooks and "forward" not in vars(loss_fn)
        return is_plain and not isinstance(loss_fn, nn.TripletMarginWithDistanceLoss)  # it calls a user's function
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    return loss_fn is token_cross_entropy or getattr(loss_fn, "__module__", None) == "torch.nn.functional"


_CROSS_ENTROPY: dict[str, Any] = {"weight": None, "ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}


def _cross_entropy_options(loss_fn: Callable[..., Tensor]) -> Any:
    """Return what has the options of cross-entropy as attributes: the module itself, or those of a function.

    None for other losses.
    """
    if type(loss_fn) is nn.CrossEntropyLoss:
        return loss_fn
    function: Any = loss_fn
    args, options = (), dict[str, Any]()
    if isinstance(loss_fn, functools.partial):
        function, args, options = loss_fn.func, loss_fn.args, loss_fn.keywords
    if function not in (F.cross_entropy, token_cross_entropy) or args or not options.keys() <= _CROSS_ENTROPY.keys():
        return None
    return SimpleNamespace(**_CROSS_ENTROPY | options, classes_last=function is token_cross_entropy)


def _cross_entropy(options: Any, outputs: Any, targets: Any) -> tuple[Tensor, Callable[[], Tensor]] | None:
    """Compute what torch's cross_entropy computes, in the same steps, with and without reduction: one costly softmax.

    None for soft targets, label smoothing and other rare options, which take two calls.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.dim() < 2:
        return None
    if targets.is_floating_point() or options.reduction not in ("mean", "sum", "none") or options.label_smoothing:
        return None
    shape = targets.shape
    if getattr(options, "classes_last", False):
        outputs, targets = outputs.float().flatten(0, -2), targets.flatten()
    if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return None  # torch's own function will raise an error that says what is wrong
    if outputs.dtype in (torch.bfloat16, torch.float16) and torch.is_autocast_enabled(outputs.device.type):
        outputs = outputs.float()  # as autocast does for cross_entropy, but not for log_softmax on a CPU
    logs, rest = F.log_softmax(outputs, 1), {"weight": options.weight, "ignore_index": options.ignore_index}
    raw: Tensor = F.nll_loss(logs, targets, **rest, reduction="none")
    return raw.view(shape), functools.partial(F.nll_loss, logs, targets, **rest, reduction=options.reduction)


def _device_of(outputs: Any) -> torch.device:
    """Return the device of the first tensor among the outputs."""
    found = (leaf.device for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))
    return next(found, torch.device("cpu"))


def _ignore_index(loss_fn: Callable[..., Tensor]) -> int | None:
    """Return the target whose loss does not count: an attribute of the loss module, or the function's default."""
    parameter = _signature(loss_fn).parameters.get("ignore_index")
    default = parameter.default if parameter is not None else None
    found = getattr(loss_fn, "ignore_index", default)
    return found if isinstance(found, int) else None


def _class_weights(loss_fn: Callable[..., Tensor]) -> Tensor | None:
    """Return the weight of each class, if the loss is a module or a partial that has them."""
    if isinstance(loss_fn, functools.partial):
        found = loss_fn.keywords.get("weight")
    else:
        found = getattr(loss_fn, "weight", None)
    return found if isinstance(found, Tensor) and found.dim() == 1 else None


def _takes_mask(reducer: Reducer) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in _signature(reducer).parameters.values() if p.kind in positional and p.default is p.empty]
    return len(required) > 1


def _require_two_arguments(loss_fn: Callable[..., Tensor]) -> None:
    """Raise if a loss cannot be called with the outputs and the targets."""
    signature = _signature(loss_fn)
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = type(loss_fn).__name__ if isinstance(loss_fn, nn.Module) else getattr(loss_fn, "__name__", "loss_fn")
        raise TypeError(
            f"loss_fn is called with two arguments, the outputs and the targets, but {name}{signature} does not take "
            f"these ({error}): put what else it needs into the targets, as a tuple that forward= returns, and pass a "
            "function that takes them apart, such as lambda outputs, targets: loss(outputs, *targets)"
        ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):  # some callables written in C have no signature: they may take anything
        return inspect.signature(lambda *args, **kwargs: None)


def default_forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    """Run the model on a pair (inputs, targets), or on a dict of keyword arguments. Returns outputs and targets."""
    if isinstance(batch, Mapping):
        return model(**batch), batch.get("labels", batch)
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        inputs, targets = batch
        return model(inputs), targets
    raise TypeError(
        f"a batch of type {type(batch).__name__} is neither a pair (inputs, targets) nor a dict: pass "
        "forward=, a function from (model, batch) to (outputs, targets)"
    )
