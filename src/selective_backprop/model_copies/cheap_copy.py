"""Copies of the model that are cheaper to score with. They are used if measurements show that they are faster."""

from __future__ import annotations

import logging
import operator
import time
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from selective_backprop.description import Described
from selective_backprop.inference import NoTrace, device_of, wait_for
from selective_backprop.types import Candidates, Task

_logger = logging.getLogger(__name__)
_REPETITIONS = 4  # forward passes per measurement; the first does not count


class CheapCopy(Described, ABC):
    """Base of all copies. A copy is made at its first use, kept if it is faster, and updated from time to time.

    If it cannot be made or is not faster than the model itself, the model itself scores, and a line in the log says
    why. This decision is part of the state: a resumed run does not measure again.

    Args:
        refresh_every: number of candidate batches between updates of the copy's weights.
        measure: compare its speed with the model's on the first batch. If False, it is used whenever it can be made.
    """

    name = "copy"

    def __init__(self, *, refresh_every: int, measure: bool) -> None:
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1 candidate batch, got {refresh_every}")
        self.refresh_every = refresh_every
        self.measure = measure
        self.used: bool | None = None
        """Whether the copy is used for scoring; None before the first batch."""
        self.seconds = 0.0
        """Seconds spent in this process on making, compiling, measuring and updating the copy."""
        self._module: nn.Module | None = None
        self._batches = 0
        self._modules: list[nn.Module] = []  # of the model that was copied
        self._saved: dict[str, Any] | None = None  # the state to go on from, until there is a model to make a copy of

    def current(self, candidates: Candidates, task: Task) -> nn.Module:
        if self.used is False:
            return task.model
        began = time.perf_counter()
        self._make_anew_if_changed(task.model)
        up_to_date = self._module is None and self._saved is None  # as one is that is made now, and not restored
        if self._module is None:
            self._start(candidates, task)
        if self.used and not up_to_date and self._due(self._batches):
            self._refresh(candidates, task, self._batches)
        self._batches += 1
        self.seconds += time.perf_counter() - began
        return self._chosen(candidates, task)

    def _make_anew_if_changed(self, model: nn.Module) -> None:
        """Make a new copy if the user has replaced layers of the model in the middle of the run."""
        modules = list(model.modules())
        if self._modules and (len(modules) != len(self._modules) or any(map(operator.is_not, modules, self._modules))):
            _logger.warning("your model has other layers than before: its %s copy is made anew", self.name)
            self._module = None
        self._modules = modules

    @abstractmethod
    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        """Make an up-to-date copy. exact: the losses that its losses should be close to."""

    @abstractmethod
    def _follow(self, model: nn.Module) -> None:
        """Give the copy the model's current weights."""

    def _refresh(self, candidates: Candidates, task: Task, batch: int) -> None:
        """Bring the copy up to date. batch: number of the candidate batch."""
        self._follow(task.model)

    def _due(self, batch: int) -> bool:
        return batch % self.refresh_every == 0

    def _chosen(self, candidates: Candidates, task: Task) -> nn.Module:
        return self._module if self._module is not None else task.model

    def _contents(self) -> dict[str, Any]:
        """Return what the copy has learned, for the state."""
        return {}

    def _restore(self, contents: dict[str, Any]) -> None:
        return None

    def _start(self, candidates: Candidates, task: Task) -> None:
        exact = losses_of(task.model, candidates, task)  # what is wrong with the batch or the loss is not ours to hide
        problem = ""
        try:
            self._module = self._make(candidates, task, exact)
            if self._saved is not None:
                self._restore(self._saved)
            elif self.measure:
                problem = self._measured(self._module, candidates, task)
        except Exception as error:  # whatever tracing, quantising or a kernel that is not there raises
            problem = f"it cannot be made: {describe(error)}"
        self._saved = None
        self.used = not problem
        if problem:
            self._module = None
            _logger.warning("scoring with the model itself instead of its %s copy: %s", self.name, problem)

    def _measured(self, module: nn.Module, candidates: Candidates, task: Task) -> str:
        """Return why the copy is not worth using; an empty string if it is."""
        plain, cheap = seconds_of([task.model, module], candidates, task)
        began = time.perf_counter()
        self._follow(task.model)
        wait_for(device_of(task.model))
        cheap += (time.perf_counter() - began) / self.refresh_every
        found = f"{cheap * 1e3:.3g} ms for {candidates.size} candidates, the model {plain * 1e3:.3g} ms"
        if cheap >= plain:
            return f"it takes {found}"
        _logger.info("scoring with a copy of the model, %s: it takes %s", self.name, found)
        return ""

    def state_dict(self) -> dict[str, Any]:
        made = self._contents() if self._module is not None else {}
        contents = made if self._saved is None else self._saved
        return {"used": self.used, "batches": self._batches, "contents": contents}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.used, self._batches = state["used"], state["batches"]
        self._saved = state["contents"] if self.used else None
        self._module = None


def losses_of(model: nn.Module, candidates: Candidates, task: Task) -> Tensor:
    """Compute the loss of each candidate in eval mode. The model is left unchanged."""
    with NoTrace(model)():
        outputs, targets = task.forward(model, candidates.data)
        return task.loss.per_example(outputs, targets, candidates.size)


def seconds_of(models: list[nn.Module], candidates: Candidates, task: Task) -> list[float]:
    """Measure a forward pass of each model in eval mode, in seconds. They take turns, and the shortest time counts."""
    guards, device = [NoTrace(model) for model in models], device_of(task.model)
    times = [[float("inf")] for _ in models]
    for repetition in range(_REPETITIONS):
        for guard, found in zip(guards, times, strict=True):
            wait_for(device)
            began = time.perf_counter()
            with guard():
                task.forward(guard.model, candidates.data)
            wait_for(device)
            if repetition:
                found.append(time.perf_counter() - began)
    return [min(found) for found in times]


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
