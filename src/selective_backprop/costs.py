"""What loading, scoring and training cost on this machine, measured without a trace on the model."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.batches import count_rows, move
from selective_backprop.forward import default_forward
from selective_backprop.losses import PerExampleLoss, Reducer
from selective_backprop.no_trace import NoTrace, device_of, preserved_rng, unwrap, wait_for
from selective_backprop.sampling import has_ids
from selective_backprop.scorers import ForwardScorer
from selective_backprop.scorers.fresh import fidelity
from selective_backprop.types import Candidates, Forward, Scorer, Task

Action = Callable[[Candidates], object]
_SAMPLE = 8  # batches that are kept in memory and measured over and over


@dataclass(frozen=True, kw_only=True)
class ScoringCost:
    """A way of scoring."""

    seconds: float
    """Per candidate."""
    fidelity: float
    """Rank correlation with the exact loss."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds per candidate, and the losses of some."""

    loading: float
    training: float
    """Forward and backward; the optimizer's step is not in it."""
    scoring: dict[str, ScoringCost]
    """By name; "exact" is the loss in eval mode."""
    losses: Tensor = field(repr=False)
    """Of the candidates that were measured with, under the model as it is."""
    num_candidates: int | None
    """In the data set, where the loader has ids."""
    loads_ahead: bool
    """Whether workers load while the model computes."""

    @property
    def has_ids(self) -> bool:
        """Whether examples can be skipped before they are loaded."""
        return self.num_candidates is not None

    @property
    def forward(self) -> float:
        return self.scoring["exact"].seconds


def measure_costs(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    loader: Iterable[Any],
    *,
    forward: Forward = default_forward,
    transform: Callable[[Any], Any] | None = None,
    reducer: str | Reducer | None = None,
    device: torch.device | str | None = None,
    seconds: float = 30.0,
) -> Costs:
    """Load some batches, then score them and train on them in turn, without a trace on model, loader or random states.

    Args:
        model, loss_fn, loader, forward, transform, reducer, device: as for `SelectiveLoader`.
        seconds: to spend; each way is measured three times at least.
    """
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    place = torch.device(device) if device is not None else device_of(model)
    batches, loading = _load(loader, place, transform)
    task = Task(unwrap(model), forward, PerExampleLoss(loss_fn, reducer))
    ways: dict[str, Scorer] = {"exact": ForwardScorer(), **_cheaper(batches[0], task)}
    candidates = [Candidates(batch, None, count_rows(batch)) for batch in batches]
    scores = {name: torch.cat([way.score(c, task).float().cpu() for c in candidates]) for name, way in ways.items()}
    actions: dict[str, Action] = {name: functools.partial(way.score, task=task) for name, way in ways.items()}
    actions["training"] = functools.partial(_gradients, task=task)
    costs = _time_in_turns(actions, candidates, place, seconds)
    return Costs(
        loading=loading,
        training=costs["training"],
        scoring={
            name: ScoringCost(seconds=costs[name], fidelity=fidelity(scores[name], scores["exact"])) for name in ways
        },
        losses=scores["exact"],
        num_candidates=len(loader.dataset) if has_ids(loader) else None,  # type: ignore[attr-defined]
        loads_ahead=getattr(loader, "num_workers", 0) > 0,
    )


def _load(
    loader: Iterable[Any], device: torch.device, transform: Callable[[Any], Any] | None
) -> tuple[list[Any], float]:
    """Some batches on the device, and the seconds per candidate; the first batch, which starts workers, not counted."""
    batches: list[Any] = []
    times: list[float] = []
    generator = getattr(loader, "generator", None)
    state = generator.get_state() if generator is not None else None
    with preserved_rng(device):
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
    if generator is not None:
        generator.set_state(state)
    if not batches:
        raise ValueError("the loader is empty: it has no batch to measure with")
    return batches, median(times[1:] or times)


def _cheaper(batch: Any, task: Task) -> dict[str, Scorer]:
    """Cheaper ways to score that work with this model and these batches."""
    ways: dict[str, Scorer] = {}
    inputs = batch[0] if isinstance(batch, (list, tuple)) and len(batch) == 2 else None
    if isinstance(inputs, Tensor) and inputs.dim() in (3, 4, 5) and inputs.is_floating_point():
        half = ForwardScorer(scale_factor=0.5)
        try:
            half.score(Candidates(batch, None, count_rows(batch)), task)
        except Exception:  # whatever a network raises for inputs of another size
            return ways
        ways["half resolution"] = half
    return ways


def _gradients(candidates: Candidates, task: Task) -> object:
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    with NoTrace(task.model, "train")(), _training(task.model), torch.enable_grad():
        outputs, targets = task.forward(task.model, candidates.data)
        loss, _ = task.loss.for_training(outputs, targets, None, candidates.size)
        return torch.autograd.grad(loss, parameters, allow_unused=True)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    resting = [module for module in model.modules() if not module.training]
    for module in resting:
        module.training = True
    try:
        yield
    finally:
        for module in resting:
            module.training = False


def _time_in_turns(
    actions: dict[str, Action],
    candidates: list[Candidates],
    device: torch.device,
    seconds: float,
) -> dict[str, float]:
    """Median seconds per candidate of each, in turns, so that drift of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():  # the first call is slower: kernels are chosen, memory is taken
        action(candidates[0])
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 3 or time.perf_counter() < end:
        chosen = candidates[turn % len(candidates)]
        for name, action in actions.items():
            wait_for(device)
            began = time.perf_counter()
            action(chosen)
            wait_for(device)
            times[name].append((time.perf_counter() - began) / chosen.size)
        turn += 1
    return {name: median(values) for name, values in times.items()}
