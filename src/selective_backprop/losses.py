"""Losses per example from any loss function, the weighted training loss, and the default forward pass.

# N = examples in the batch; raw losses may have more dimensions (tokens, pixels, boxes)
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from selective_backprop.functional import highest_of_tokens
from selective_backprop.inference import preserved_rng, private_copy, random_states, set_random_states, unwrap

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
    flat = logits.float().flatten(0, -2)  # float32, because losses in half precision are too coarse to rank
    losses = F.cross_entropy(
        flat, labels.flatten(), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return losses.view(labels.shape) if reduction == "none" else losses


class WithReference(NamedTuple):
    """Targets of a `TokenShare` together with the losses of a reference model.

    >>> WithReference(torch.tensor([[3, -100]]), torch.tensor([[0.5, 0.0]])).targets.tolist()
    [[3, -100]]
    """

    targets: Any
    """What the loss takes as its second argument, such as labels."""
    losses: Tensor
    """(N, T) the reference model's loss of each token."""


class TokenShare:
    """A loss of only those tokens of a batch that carry the loss. The others, and ignored ones, have no gradient.

    Pass it as `loss_fn`. The training loss is the mean over the tokens that are kept. Examples are still scored by the
    loss of all their tokens: their mean, unless a `PerExampleLoss` around it has another reducer. It saves no compute:
    the model has seen all tokens by then. It only changes what is learned.

    Rho-1 ranks tokens by their loss minus that of a reference model, which is low for tokens that are noise. For that,
    compute the reference model's losses in your training step, or once before training, and pass them with the targets:

        loader.loss(model(tokens), WithReference(labels, reference_losses))

    Args:
        loss_fn: a loss with one number per token, such as `token_cross_entropy`.
        share: share of a batch's tokens to train on. Ignored ones, such as padding, do not count.

    >>> logits = torch.tensor([[[0.0, 9.0], [9.0, 0.0]]])
    >>> TokenShare(token_cross_entropy, 0.5)(logits, torch.tensor([[0, 0]]))  # token_cross_entropy: the mean, 4.5
    tensor(9.0001)

    Lin et al. 2024, https://arxiv.org/abs/2404.07965.
    """

    def __init__(self, loss_fn: Callable[..., Tensor], share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"the share of tokens to train on must be in (0, 1], got {share}")
        self.loss_fn, self.share = loss_fn, share
        self._loss = PerExampleLoss(self)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Compute the mean loss of the tokens that are kept."""
        return self._loss.evaluate(outputs, targets).own()

    def weights(self, losses: Tensor, counts: Tensor | None, reference_losses: Tensor | None = None) -> Tensor:
        """Return the weight of each token, (N, T). It is 0 for tokens that are left out, and 1 on average.

        Args:
            losses: (N, T) loss of each token.
            counts: (N, T) which of them count; None if all do.
            reference_losses: (N, T) losses to subtract before tokens are ranked, if any.
        """
        if losses.dim() < 2:
            raise ValueError(
                f"TokenShare needs a loss of each token, but its loss_fn returned losses of shape "
                f"{tuple(losses.shape)}, one per example: use sb.token_cross_entropy"
            )
        scores = losses
        if reference_losses is not None:
            if (reference_losses.shape, reference_losses.device) != (losses.shape, losses.device):
                raise ValueError(
                    f"the reference model's losses have shape {tuple(reference_losses.shape)} on "
                    f"{reference_losses.device}, but the model's have {tuple(losses.shape)} on {losses.device}: both "
                    "models must read the same tokens, with the same tokenizer, on the same device"
                )
            scores = losses - reference_losses.detach()
        counts = torch.ones_like(losses, dtype=torch.bool) if counts is None else counts
        return highest_of_tokens(scores, counts, self.share).to(losses)


class WrongCountError(ValueError):
    """The loss function returned losses for another number of examples than the batch has."""


class Evaluation:
    """The result of the user's loss on a training batch: losses without reduction, and the user's own reduced loss."""

    def __init__(self, raw: Tensor, losses: Tensor, own: Callable[[], Tensor]) -> None:
        self.raw = raw
        """(N, ...) losses without reduction, with their graph."""
        self.losses = losses
        """(N,) detached: the loss of each example."""
        self._own = own

    def own(self) -> Tensor:
        """Return the scalar that the user's loss would have returned, bit for bit, with its graph."""
        loss = self._own()
        return loss if loss.dim() == 0 else loss.mean()


class PerExampleLoss:
    """Wraps the user's loss function, and computes one loss per example or the loss to train on.

    A loss may draw random numbers, count its calls or update buffers. So a training step calls it once, as in plain
    training, and a selection pass never calls the original. If a second call cannot be avoided, it uses a copy of the
    loss module and the same random numbers, and leaves no trace. torch's own losses have no state, so they need no
    copy. For cross-entropy, the costly part is computed only once.

    Args:
        loss_fn: an nn loss module (its reduction does not matter), a function that takes `reduction=`, or a
            callable that returns one loss per example. A `TokenShare` masks the training loss only, and its reducer is
            "mean" by default.
        reducer: how several losses of one example (tokens, pixels, boxes) become its score: "mean", "sum",
            "max", or a function from (N, ...) to (N,). "mean" leaves out targets that loss_fn ignores by its
            ignore_index, such as padding. A function can do so if it takes the mask as a second argument.

    >>> loss = PerExampleLoss(nn.CrossEntropyLoss())
    >>> loss.per_example(torch.zeros(2, 4), torch.tensor([0, 1])).shape
    torch.Size([2])
    """

    def __init__(self, loss_fn: Callable[..., Tensor], reducer: str | Reducer | None = None) -> None:
        self.token_share: TokenShare | None = None
        """Masks tokens in the training loss, if only some are trained on."""
        if isinstance(loss_fn, TokenShare):
            self.token_share, loss_fn = loss_fn, loss_fn.loss_fn
            reducer = "mean" if reducer is None else reducer
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be callable, got {type(loss_fn).__name__}")
        if isinstance(reducer, str) and reducer not in REDUCERS:
            raise ValueError(f"reducer must be one of {', '.join(REDUCERS)} or a function, got {reducer!r}")
        self.loss_fn = loss_fn
        self.reducer: Reducer | None = REDUCERS[reducer] if isinstance(reducer, str) else reducer
        self._module = loss_fn if isinstance(loss_fn, nn.Module) else None
        self._has_reduction = _has_reduction(loss_fn)
        self._is_pure = _is_torchs_own(loss_fn)
        self._shared = _shared_cross_entropy(loss_fn) if self._is_pure else None
        self._ignore_index = _ignore_index(loss_fn)
        self._reducer_takes_mask = self.reducer is not None and _takes_mask(self.reducer)
        self.writes_state: bool | None = None
        """Whether the loss is a module that changes its buffers; None before the first selection pass."""

    @property
    def costs_extra(self) -> bool:
        """Whether computing both the losses per example and the user's own reduced loss takes two calls."""
        return self._has_reduction and not self._is_pure and self.token_share is None

    @property
    def module(self) -> nn.Module | None:
        """The user's loss, if it is a module that may have a state."""
        return None if self._is_pure else self._module

    def per_example(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Tensor:
        """Compute one loss per example, shape (N,), for scoring. The user's loss module is not changed.

        A loss that draws random numbers takes them from the global random states. The caller must preserve these.
        """
        targets, _ = _apart(targets)
        private = self._private()
        raw = self._unreduced(private)(outputs, targets)
        if self.writes_state is None:  # only once per run, so waiting for the GPU does not matter
            self.writes_state = self.module is not None and not _same_buffers(private, self.module)
        return self._reduce(raw, targets, num_examples)

    def evaluate(self, outputs: Any, targets: Any, num_examples: int | None = None) -> Evaluation:
        """Compute the losses of a training batch, with their graph."""
        targets, reference_losses = _apart(targets)
        found = self._evaluate(outputs, targets, num_examples)
        if self.token_share is None:
            return found
        weights = self.token_share.weights(found.raw.detach(), self._mask(found.raw, targets), reference_losses)
        masked = found.raw * weights

        def own() -> Tensor:
            if not self._has_reduction:
                return masked
            with torch.no_grad():
                scale = _ratio(found.own(), found.raw)
            return masked.mean() * scale

        return Evaluation(masked, found.losses, own)

    def _evaluate(self, outputs: Any, targets: Any, num_examples: int | None) -> Evaluation:
        if self._shared is not None and (found := self._shared(outputs, targets)) is not None:
            raw, shared = found
            return Evaluation(raw, self._reduce(raw.detach(), targets, num_examples), shared)
        if not self._has_reduction or self._is_pure:
            raw = self._seen(outputs, targets)
            own = (lambda: raw) if not self._has_reduction else (lambda: self.loss_fn(outputs, targets))
        else:
            device = _device_of(outputs)
            before, states = self._private(), random_states(device)
            raw = self._seen(outputs, targets)

            def own() -> Tensor:
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
        of_batch: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the scalar to call backward on, and the detached loss of each example.

        Without weights (None), the scalar is the user's own loss, bit for bit. With weights, each example's part of it
        is multiplied by its weight. The scale does not change: whatever the loss divides by (examples, class weights,
        tokens that are not ignored) stays as it is.

        Args:
            outputs: first argument of the loss.
            targets: second argument of the loss.
            weights: (N,) weight of each example; None if all are 1.
            num_examples: N, to check the number of losses.
            record: whether the loss of each example is needed. If not, it is None if it would take a second call.
            of_batch: whether a loss function may give one number for the whole batch. It is returned instead of the
                losses of the examples, as a tensor without dimensions.
        """
        if of_batch and weights is None and not self._has_reduction and self.token_share is None:
            loss = self.loss_fn(outputs, targets)
            if isinstance(loss, Tensor) and loss.dim() == 0:
                return loss, loss.detach()
            losses = self._reduce(loss.detach() if isinstance(loss, Tensor) else loss, targets, num_examples)
            return loss.mean(), losses
        if weights is None and not record and self.costs_extra:
            loss = self.loss_fn(outputs, targets)
            return (loss if loss.dim() == 0 else loss.mean()), None
        found = self.evaluate(outputs, targets, num_examples)
        if weights is None:
            return found.own(), found.losses
        raw = found.raw
        weighted = (raw * weights.to(raw).view(-1, *[1] * (raw.dim() - 1))).mean()
        if not self._has_reduction:
            return weighted, found.losses
        with torch.no_grad():
            scale = _ratio(found.own(), raw)
        return weighted * scale, found.losses

    def scale(self, outputs: Any, targets: Any, raw: Tensor) -> Tensor | float:
        """Return the user's own reduced loss divided by the plain mean of the raw losses, without changing the loss."""
        if not self._has_reduction:
            return 1.0
        with torch.no_grad(), preserved_rng(_device_of(outputs)):
            return _ratio(self._private()(outputs, targets).mean(), raw)  # the mean of a scalar is itself

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
                "examples or to weight them: let it return the losses without reduction, or take a keyword argument "
                "`reduction`"
            )
        rows = len(raw) if num_examples is None else num_examples
        if len(raw) != rows:
            raise WrongCountError(f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples")
        if self.reducer is not None and raw.dim() > 1:
            raw = self.reducer(raw, self._mask(raw, targets)) if self._reducer_takes_mask else self.reducer(raw)
        if raw.numel() != rows:
            raise ValueError(
                f"loss_fn returned losses of shape {tuple(raw.shape)} for {rows} examples: pass "
                f"reducer={' or '.join(map(repr, REDUCERS))}, or a function, to make them one per example"
            )
        return raw.reshape(rows)

    def _mask(self, raw: Tensor, targets: Any) -> Tensor | None:
        """Return which losses count. The loss alone cannot tell: it is zero for ignored and for perfect predictions."""
        if self._ignore_index is None or not isinstance(targets, Tensor) or targets.shape != raw.shape:
            return None
        return targets != self._ignore_index


def _apart(targets: Any) -> tuple[Any, Tensor | None]:
    """Return the targets themselves, and the losses of a reference model that came with them, if any."""
    return targets if isinstance(targets, WithReference) else (targets, None)


def require_finite(losses: Tensor, ids: Tensor | None, what: str) -> None:
    """Raise at a NaN or infinite loss, and name the examples.

    what: what the numbers are, for the error.
    """
    # A finite sum means that all are finite, and takes a fifth of the time of checking each.
    if math.isfinite(float(losses.sum())) or bool(torch.isfinite(losses).all()):
        return
    rows = (~torch.isfinite(losses)).nonzero().flatten()
    values = ", ".join(f"{value}" for value in losses[rows[:5]].tolist())
    where = f"ids {ids[rows[:5]].tolist()}" if ids is not None else f"positions {rows[:5].tolist()} of the batch"
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    raise ValueError(
        f"not finite: {what} is {values} for the examples with {where}{more}. Training has diverged or these examples "
        "are broken: look at them, lower the learning rate, or clip gradients"
    )


class NegativeScoresError(ValueError):
    """Scores are negative, and the policy draws in proportion to them."""


def require_not_negative(scores: Tensor, ids: Tensor | None, what: str) -> None:
    """Raise at a negative score, for policies that draw in proportion to scores. Names the examples and alternatives.

    what: what the numbers are, for the error.
    """
    if not bool((scores < 0).any()):
        return
    rows = (scores < 0).nonzero().flatten()
    values = ", ".join(f"{value:.4g}" for value in scores[rows[:5]].tolist())
    where = (
        f"ids {ids[rows[:5]].tolist()}" if ids is not None else f"positions {rows[:5].tolist()} among the candidates"
    )
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    raise NegativeScoresError(
        f"negative: {what} is {values} for the examples with {where}{more}. Examples are drawn in proportion to it, so "
        "it must be >= 0. Use selective_backprop, top_k or ledger_backprop, which take losses of any sign, or a loss "
        "that cannot be negative"
    )


def _same_buffers(one: Any, other: nn.Module) -> bool:
    ones, others = dict(one.named_buffers()), dict(unwrap(other).named_buffers())
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


def _ratio(own: Tensor, raw: Tensor) -> Tensor:
    mean = raw.detach().mean()
    return torch.where(mean == 0, torch.ones_like(mean), own.detach() / mean)


def _has_reduction(loss_fn: Callable[..., Tensor]) -> bool:
    """Whether the loss can be called without its reduction."""
    is_module = isinstance(loss_fn, nn.Module) and hasattr(loss_fn, "reduction")
    return is_module or "reduction" in _parameters(loss_fn)


def _is_torchs_own(loss_fn: Callable[..., Tensor]) -> bool:
    """Whether the loss is torch's own, without random numbers or state. A user's subclass of it may have both."""
    if isinstance(loss_fn, nn.Module):
        is_plain = type(loss_fn).__module__ == "torch.nn.modules.loss" and not loss_fn._forward_hooks
        is_plain = is_plain and not loss_fn._forward_pre_hooks and "forward" not in vars(loss_fn)
        return is_plain and not isinstance(loss_fn, nn.TripletMarginWithDistanceLoss)  # it calls a user's function
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    return loss_fn is token_cross_entropy or getattr(loss_fn, "__module__", None) == "torch.nn.functional"


Shared = Callable[[Any, Any], tuple[Tensor, Callable[[], Tensor]] | None]


def _shared_cross_entropy(loss_fn: Callable[..., Tensor]) -> Shared | None:
    """For cross-entropy, return a function that computes it with and without reduction, sharing the costly softmax."""
    if type(loss_fn) is nn.CrossEntropyLoss:
        return functools.partial(_cross_entropy, lambda: {name: getattr(loss_fn, name) for name in _CROSS_ENTROPY})
    function: Any = loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn
    options = loss_fn.keywords if isinstance(loss_fn, functools.partial) else {}
    has_args = isinstance(loss_fn, functools.partial) and bool(loss_fn.args)
    if (
        function not in (F.cross_entropy, token_cross_entropy)
        or has_args
        or not options.keys() <= _CROSS_ENTROPY.keys()
    ):
        return None
    return functools.partial(_cross_entropy, lambda: options, classes_last=function is token_cross_entropy)


_CROSS_ENTROPY: dict[str, Any] = {"weight": None, "ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}


def _cross_entropy(
    options: Callable[[], dict[str, Any]], outputs: Any, targets: Any, *, classes_last: bool = False
) -> tuple[Tensor, Callable[[], Tensor]] | None:
    """Compute what torch's cross_entropy computes, in the same steps. None for rare options, which take two calls."""
    own = _CROSS_ENTROPY | options()
    smoothing = own["label_smoothing"]
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.dim() < 2:
        return None
    if targets.is_floating_point() or own["reduction"] not in ("mean", "sum", "none") or not 0 <= smoothing <= 1:
        return None
    if smoothing > 0 and own["weight"] is not None:
        return None
    shape = targets.shape
    if classes_last:
        outputs, targets = outputs.float().flatten(0, -2), targets.flatten()
    if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return None  # torch's own function will raise an error that says what is wrong
    logs = F.log_softmax(outputs, 1)
    ignored = targets == own["ignore_index"] if smoothing > 0 else None
    smooth = -logs.sum(1).masked_fill(ignored, 0.0) if ignored is not None else None

    def reduced(reduction: str) -> Tensor:
        nll: Tensor = F.nll_loss(logs, targets, own["weight"], ignore_index=own["ignore_index"], reduction=reduction)
        if smooth is None or ignored is None:
            return nll
        spread = smooth if reduction == "none" else smooth.sum()
        if reduction == "mean":
            spread = spread / (~ignored).sum()
        total: Tensor = (1 - smoothing) * nll + spread * (smoothing / logs.shape[1])
        return total

    return reduced("none").view(shape), lambda: reduced(own["reduction"])


def _device_of(outputs: Any) -> torch.device:
    """Return the device of the first tensor among the outputs."""
    found = (leaf.device for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))
    return next(found, torch.device("cpu"))


def _ignore_index(loss_fn: Callable[..., Tensor]) -> int | None:
    """Return the target whose loss does not count: an attribute of the loss module, or the function's default."""
    parameter = _parameters(loss_fn).get("ignore_index")
    default = parameter.default if parameter is not None else None
    found = getattr(loss_fn, "ignore_index", default)
    return found if isinstance(found, int) else None


def _takes_mask(reducer: Reducer) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in _parameters(reducer).values() if p.kind in positional and p.default is p.empty]
    return len(required) > 1


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}


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
