"""Measures what loading, scoring and training cost on this machine, without changing the model."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.chain.user_loader import has_ids, num_candidates, untouched_generators
from selective_backprop.chain.with_length import WithLength
from selective_backprop.inference import NoTrace, as_device, device_of, preserved_rng, wait_for
from selective_backprop.loader import SelectiveLoader
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.rows import count_rows, move
from selective_backprop.scorers import ForwardScorer
from selective_backprop.types import Candidates, Forward, Task

_Action = Callable[[Candidates], object]
SECONDS = 30.0
"""How long to measure."""
_SAMPLE = 8  # batches that are kept in memory and measured over and over


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured costs in seconds per candidate, and the losses of some candidates."""

    loading: float
    training: float
    """Seconds of the forward and backward pass, without the optimizer's step."""
    forward: float
    """Seconds of a selection pass: the loss in eval mode, without gradients."""
    losses: Tensor = field(repr=False)
    """Losses of the candidates used for measuring, under the model as it is."""
    num_candidates: int | None
    """Candidates per epoch, counted by the loader's sampler; None if not known."""
    has_ids: bool
    """Whether examples can be skipped before they are loaded."""
    loads_ahead: bool
    """Whether workers load while the model computes."""
    trainable: float = 1.0
    """Share of the model's parameters that are trained: a few percent with LoRA."""
    checkpoints: bool = False
    """Whether the model computes activations again in the backward pass (gradient checkpointing)."""

    @property
    def backward(self) -> float:
        """Cost of a backward pass, in forward passes.

        It is about 2 if all weights are trained, about 1 with LoRA, because frozen weights need no gradients, and 1
        more with gradient checkpointing, which runs the forward pass again.
        """
        return self.training / self.forward - 1


def measure_costs(
    model: nn.Module,
    loss_fn: Callable[..., Tensor] | PerExampleLoss,
    loader: Iterable[Any],
    *,
    forward: Forward = default_forward,
    transform: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
    seconds: float = SECONDS,
    note: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Measure costs: load some batches, then score them and train on them in turn. Nothing is changed by it.

    Args:
        model, loss_fn, loader, forward, transform, device: as for `SelectiveLoader`.
        seconds: time to spend. Everything is measured at least three times.
        note: called with a line that says how long it will take, if there is something to measure.
    """
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(loader, SelectiveLoader):
        raise TypeError("loader must be your own DataLoader, not the SelectiveLoader around it")
    stream = loader.loader if isinstance(loader, WithLength) else loader
    if isinstance(stream, Iterator):
        raise TypeError(
            f"loader is an iterator (a {type(stream).__name__}), and measuring would take its first {_SAMPLE} batches "
            "away: pass something that starts anew, such as your DataLoader or a list of batches"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "no parameter of the model requires gradients, so there is no training to measure: unfreeze what you train"
        )
    place = as_device(device) if device is not None else device_of(model)
    note(f"measuring for about {seconds:g} s")
    batches, loading = _load(loader, place, transform)
    loss = loss_fn if isinstance(loss_fn, PerExampleLoss) else PerExampleLoss(loss_fn)
    task = Task(model, forward, loss).for_scores()
    candidates = [Candidates(batch, None, count_rows(batch)) for batch in batches]
    score = functools.partial(ForwardScorer().score, task=task)
    losses = torch.cat([score(some).float().cpu() for some in candidates])
    actions: dict[str, _Action] = {"forward": score, "training": functools.partial(_gradients, task=task)}
    costs = _per_candidate(actions, candidates, place, seconds)
    return Costs(
        loading=loading,
        training=costs["training"],
        forward=costs["forward"],
        losses=losses,
        num_candidates=num_candidates(loader) if has_ids(loader) else None,
        has_ids=has_ids(loader),
        loads_ahead=getattr(loader, "num_workers", 0) > 0,
        trainable=_trainable(model),
        checkpoints=any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules()),
    )


def _trainable(model: nn.Module) -> float:
    """Return the share of the model's parameters that are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained) / max(1, sum(size for size, _ in sizes))


def _load(
    loader: Iterable[Any], device: torch.device, transform: Callable[[Any], Any] | None
) -> tuple[list[Any], float]:
    """Load some batches to the device. Returns them and the seconds per candidate, without the first batch.

    The first batch also starts the workers, so it is not counted.
    """
    batches: list[Any] = []
    times: list[float] = []
    with untouched_generators(loader), preserved_rng(device):
        iterator = iter(loader)
        for _ in range(_SAMPLE):
            began = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                break
            batch = move(batch, device)
            batch = transform(batch) if transform is not None else batch
            wait_for(device)
            batches.append(batch)
            times.append((time.perf_counter() - began) / count_rows(batch))
    if not batches:
        raise ValueError("the loader is empty: it has no batch to measure with")
    return batches, median(times[1:] or times)


def _per_candidate(
    actions: dict[str, _Action], candidates: list[Candidates], device: torch.device, seconds: float
) -> dict[str, float]:
    """Measure the median seconds per candidate of each action.

    They take turns, at least three, so that a machine that slows down affects all alike. The first turn is not counted:
    it chooses kernels and takes memory.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action(candidates[0])
    end = time.perf_counter() + seconds
    for turn in itertools.count():
        if turn >= 3 and time.perf_counter() >= end:
            break
        some = candidates[turn % len(candidates)]
        for name, action in actions.items():
            wait_for(device)
            began = time.perf_counter()
            action(some)
            wait_for(device)
            times[name].append((time.perf_counter() - began) / some.size)
    return {name: median(values) for name, values in times.items()}


def _gradients(candidates: Candidates, task: Task) -> object:
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    with NoTrace(task.model, "train")(), torch.enable_grad():
        for module in task.model.modules():  # NoTrace restores their modes
            module.training = True
        outputs, targets = task.forward(task.model, candidates.data)
        loss, _ = task.loss.for_training(outputs, targets, None, candidates.size)
        return torch.autograd.grad(loss, parameters, allow_unused=True)
