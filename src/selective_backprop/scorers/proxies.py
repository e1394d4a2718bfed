"""Scoring by a proxy: a small model that stands in for the large one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from selective_backprop.inference import device_of, seeded_rng, unwrap
from selective_backprop.options import require_numbers
from selective_backprop.rows import Layout, take
from selective_backprop.scorers.base import FidelityCheck, FreshScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.types import Candidates, Task

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]

_FIRST_SEED = 0x9E3779B9  # far from seeds that people choose, so that their random numbers are not drawn again


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD with learning rate 0.1, Nesterov momentum 0.9 and weight decay 5e-4."""
    return SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def falling(progress: float) -> float:
    """Let a learning rate rise for a twentieth of the run, then fall to zero.

    >>> [round(falling(progress), 2) for progress in (0.0, 0.025, 0.05, 0.525, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return min(progress / 0.05, (1 - progress) / 0.95)


class ProxyScorer(FreshScorer):
    """Scores candidates with a small model, a proxy, which is trained alongside the large model or was trained before.

    The proxy scores the very batch that is trained on, after your transform: the same random views. After scoring every
    n-th candidate batch it makes one training step on the whole batch, or on the part with its highest scores: in train
    mode, on the mean loss. It also learns in the method's warm-up, from whole batches. The random numbers of that step
    (dropout) depend only on the number of batches, and neither the large model nor any global random state is touched.
    A batch of a single candidate is scored but not trained on, because of BatchNorm.

    Its learning rate follows the run, so that it is fitted when your model is. For that the loader must know the length
    of the run, `num_epochs=`; else the rate stays as it is. `loader.scorer.fidelity` tells how well it ranks.

    The model that you pass is a recipe, like every part of a method. Every loader trains its own copy,
    `loader.scorer.model`, with `loader.scorer.optimizer` (`loader.scorer.fresh.model` with stale or predicted scores).
    The copy moves to the device of the large model at its first batch.

    Args:
        model: the small model. It takes the same batches, and its outputs fit the same loss.
        train_every: n. 0 is for a proxy that was trained before and does not change.
        train_share: the share of the candidates, those with its highest scores, that the proxy learns from. With the
            selectivity of a `top_k`, it learns from its own selection.
        optimizer: makes the proxy's optimizer from its parameters, such as `torch.optim.AdamW`. The default is SGD with
            learning rate 0.1, Nesterov momentum 0.9 and weight decay 5e-4.
        rate: factor on the optimizer's learning rates at a fraction of the run, from 0 to 1. By default it rises for a
            twentieth of the run and then falls to zero; `lambda progress: 1.0` leaves the rates as they are.
    """

    score_name = "loss of the proxy"

    def __init__(
        self,
        model: nn.Module,
        *,
        train_every: int = 4,
        train_share: float = 1.0,
        optimizer: MakeOptimizer = sgd,
        rate: Callable[[float], float] = falling,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"a proxy must be a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(train_every, int) or train_every < 0:
            raise ValueError(f"train_every must be a whole number of candidate batches >= 0, got {train_every!r}")
        require_numbers(train_share=train_share)
        if not 0 < train_share <= 1:
            raise ValueError(f"train_share must be in (0, 1], got {train_share}")
        self.model = unwrap(model)
        if not callable(rate):
            raise TypeError(f"rate must be a function from the fraction of the run to a factor, got {rate!r}")
        self.train_every, self.train_share, self.rate = train_every, train_share, rate
        self.optimizer = _optimizer_of(self.model, optimizer) if train_every else None
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        self._rates = [float(group["lr"]) for group in groups]
        self._pass = ForwardScorer()
        self._check = FidelityCheck(ForwardScorer())
        self._batches = 0

    @property
    def fidelity(self) -> float:
        """Rank correlation of the scores with the model's own losses, on the last sample; NaN before the first one."""
        return self._check.fidelity

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        self._move_to(device_of(task.model))
        scores = self._score(candidates, task)
        self._check(scores, candidates, task)
        self._learn(candidates, task, scores)
        return scores

    def watch(self, candidates: Candidates, task: Task) -> None:
        """Learn from candidates while selection is off, as in the method's warm-up."""
        self._move_to(device_of(task.model))
        self._learn(candidates, task)

    def _learn(self, candidates: Candidates, task: Task, scores: Tensor | None = None) -> None:
        self._batches += 1
        if self.optimizer is None or self._batches % self.train_every:
            return
        if scores is not None and self.train_share < 1:
            candidates = _highest(candidates, scores, math.ceil(self.train_share * candidates.size - 1e-9))
        if candidates.size > 1:
            self._train(self.optimizer, candidates, task)

    def _score(self, candidates: Candidates, task: Task) -> Tensor:
        try:
            return self._pass.score(candidates, Task(self.model, task.forward, task.loss))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if self._batches:
                raise
            self._check.exact.score(candidates, task)  # if the large model fails too, its error is the one to raise
            name = type(self.model).__name__
            raise ValueError(
                f"the proxy ({name}) does not work with the batches or the loss of your model: {error}"
            ) from error

    def _train(self, optimizer: Optimizer, candidates: Candidates, task: Task) -> None:
        self.model.train()
        with torch.enable_grad(), seeded_rng(device_of(self.model), _FIRST_SEED + self._batches):
            outputs, targets = task.forward(self.model, candidates.data)
            loss = task.loss.per_example(outputs, targets, candidates.size).mean()
            # inputs= keeps gradients away from parameters that the loss or the forward function may have.
            loss.backward(inputs=[p for p in self.model.parameters() if p.requires_grad])  # type: ignore[no-untyped-call]
            if task.progress is not None:
                for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                    group["lr"] = rate * self.rate(task.progress)
            optimizer.step()
            optimizer.zero_grad()

    def _move_to(self, device: torch.device) -> None:
        if device_of(self.model) != device:
            self.model.to(device)
            if self.optimizer is not None:  # moves an optimizer state that was loaded before the first batch
                self.optimizer.load_state_dict(self.optimizer.state_dict())

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else None
        own = {"model": self.model.state_dict(), "optimizer": optimizer, "batches": self._batches}
        # A copy, because the proxy's next step changes its tensors.
        return copy.deepcopy(own) | {"check": self._check.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._batches = state["batches"]
        self._check.load_state_dict(state["check"])


def _highest(candidates: Candidates, scores: Tensor, count: int) -> Candidates:
    """Return the candidates with the highest scores, in the order of the batch, without their ids."""
    rows = scores.topk(count).indices.sort().values  # stays on the device: nobody waits for it
    layout = Layout(candidates.data, candidates.size)
    columns = [take(column, rows) for column in layout.columns(candidates.data, candidates.size)]
    return Candidates(layout.batch(columns), None, count)


def _optimizer_of(model: nn.Module, make: MakeOptimizer) -> Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the proxy has no parameters to train: pass train_every=0 for a proxy that does not change")
    if not callable(make):
        raise TypeError(
            "optimizer must be a function from parameters to an Optimizer, because every loader trains its own copy of "
            "the proxy, for example lambda parameters: torch.optim.SGD(parameters, lr=0.1); "
            f"got {type(make).__name__}"
        )
    optimizer = make(parameters)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must return a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return optimizer


def proxy(model: nn.Module, train_every: int = 4, **options: Any) -> ProxyScorer:
    """Score with a small model that is trained alongside, in any method with a selection pass.

    Args:
        model, train_every: as for `ProxyScorer`.
        options: other options of `ProxyScorer`.

    >>> from selective_backprop.methods import stale_selective_backprop
    >>> stale_selective_backprop(0.5, scoring=proxy(nn.Linear(64, 10), train_every=2)).scorer.fresh.train_every
    2
    """
    return ProxyScorer(model, train_every=train_every, **options)
