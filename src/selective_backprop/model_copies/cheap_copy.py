"""Stand-ins for the model that are cheaper to score with, used where they are measured to pay."""

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
_REPETITIONS = 4  # of a timed forward pass, the first of which does not count


class CheapCopy(Described, ABC):
    """What all copies share: made on first use, kept if it pays, brought up to date every so many candidate batches.

    Where it cannot be made or is not faster than the model itself, the model is scored with, and one line of the
    log says why. That decision is part of the state: a resumed run does not measure again.

    Args:
        refresh_every: candidate batches between updates of the copy's weights.
        measure: time it against the model on the first batch. False: use it wherever it can be made.
    """

    name = "copy"

    def __init__(self, *, refresh_every: int, measure: bool) -> None:
        if refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1 candidate batch, got {refresh_every}")
        self.refresh_every = refresh_every
        self.measure = measure
        self.used: bool | None = None
        """Whether it is scored with; None before the first batch."""
        self.seconds = 0.0
        """Spent so far, in this process, on making, measuring and refreshing the copy; compiling included."""
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
        """Layers may be swapped in the middle of a run; a copy of the old ones would go on without them."""
        modules = list(model.modules())
        if self._modules and (len(modules) != len(self._modules) or any(map(operator.is_not, modules, self._modules))):
            _logger.warning("the model has other layers than before: its %s copy is made anew", self.name)
            self._module = None
        self._modules = modules

    @abstractmethod
    def _make(self, candidates: Candidates, task: Task, exact: Tensor) -> nn.Module:
        """The stand-in, up to date; `exact` are the losses that it should come near to."""

    @abstractmethod
    def _follow(self, model: nn.Module) -> None:
        """Give the stand-in the model's weights."""

    def _refresh(self, candidates: Candidates, task: Task, batch: int) -> None:
        """Bring the stand-in up to date; `batch` counts candidate batches."""
        self._follow(task.model)

    def _due(self, batch: int) -> bool:
        return batch % self.refresh_every == 0

    def _chosen(self, candidates: Candidates, task: Task) -> nn.Module:
        return self._module if self._module is not None else task.model

    def _contents(self) -> dict[str, Any]:
        """What the stand-in has learned."""
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
        """Why it does not pay, if it does not."""
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
    """The loss of each candidate, in eval mode. The model is left as it was."""
    with NoTrace(model)():
        outputs, targets = task.forward(model, candidates.data)
        return task.loss.per_example(outputs, targets, candidates.size)


def seconds_of(models: list[nn.Module], candidates: Candidates, task: Task) -> list[float]:
    """Seconds of a forward pass by each model, in eval mode. They take turns, and the shortest time counts."""
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
    """In one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
