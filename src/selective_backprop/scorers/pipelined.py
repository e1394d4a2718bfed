"""Pipelined scoring: the next candidates are scored while the model trains on the current ones."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.batches.layout import move
from selective_backprop.inference import device_of, preserved_rng
from selective_backprop.scorers.background import Background
from selective_backprop.scorers.base import FidelityCheck, FreshScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.scorers.snapshot import Snapshot
from selective_backprop.types import Candidates, Measure, Task


class PipelinedScorer(FreshScorer):
    """Scores the next candidate batch in the background, with a copy of the model, during the current training step.

    The copy has the weights that the model had when the batch was submitted, or up to `sync_every` candidate batches
    earlier. So the selection never depends on which thread is faster.

    Some candidate batches are not submitted, and are scored at once with the same copy: the first one of an epoch, and
    all of them as long as an epoch keeps every candidate, because plain training loads nothing ahead.

    Args:
        fresh: scores the candidates; by default by their loss in eval mode.
        sync_every: copy the model's weights and buffers once in this many candidate batches.
        device: device of the copy, such as a second GPU; by default the device of the model.
        check_every: compare with exact scores of the current model once in this many candidate batches.

    >>> PipelinedScorer(sync_every=4).fresh.mode
    'eval'
    """

    works_ahead = True

    def __init__(
        self,
        fresh: FreshScorer | None = None,
        *,
        sync_every: int = 1,
        device: torch.device | str | None = None,
        check_every: int = 100,
    ) -> None:
        fresh = ForwardScorer() if fresh is None else fresh
        if not isinstance(fresh, FreshScorer) or isinstance(fresh, PipelinedScorer):
            raise TypeError(f"pipelined scoring needs a scorer that runs a model, such as ForwardScorer, got {fresh!r}")
        if fresh.mode != "eval":
            raise ValueError("pipelined scoring runs a copy of the model in eval mode, got mode 'train'")
        if not isinstance(sync_every, int) or sync_every < 1:
            raise ValueError(f"sync_every must be a whole number of candidate batches >= 1, got {sync_every!r}")
        self.fresh = fresh
        self.sync_every = sync_every
        self.device = None if device is None else torch.device(device)
        self.check_every = check_every
        self._check = FidelityCheck(ForwardScorer(measure=fresh.measure), check_every)
        self._snapshot = Snapshot(sync_every=sync_every, device=self.device)
        self._background = Background()
        self._submitted: tuple[Candidates, Future[Tensor]] | None = None
        self._known: Tensor | None = None  # saved scores of the candidates that were submitted before a resume

    def __deepcopy__(self, memo: dict[int, object]) -> PipelinedScorer:
        return self._with(copy.deepcopy(self.fresh, memo))  # without the thread and the copy of the model

    def measuring(self, measure: Measure) -> PipelinedScorer:
        return self._with(self.fresh.measuring(measure))

    def _with(self, fresh: FreshScorer) -> PipelinedScorer:
        return PipelinedScorer(fresh, sync_every=self.sync_every, device=self.device, check_every=self.check_every)

    @property
    def fidelity(self) -> float:  # type: ignore[override]
        return self._check.fidelity

    @property
    def score_name(self) -> str:  # type: ignore[override]
        return self.fresh.score_name

    def submit(self, candidates: Candidates | None, task: Task) -> None:
        """Begin to score the next candidates. None: drop those submitted before."""
        self._finish()
        if candidates is None:
            self._known = None
            return
        if self._known is not None:
            future: Future[Tensor] = Future()
            future.set_result(self._known)
            self._known = None
        else:
            work, devices = self._work(candidates, task)
            future = self._background.run(work, devices)
        self._submitted = candidates, future

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        if self._submitted is not None and self._submitted[0] is candidates:
            (_, future), self._submitted = self._submitted, None
            scores = future.result()
        else:
            self._finish()
            scores = self._score_at_once(candidates, task)
        self._check(scores, candidates, task)
        return scores

    def _score_at_once(self, candidates: Candidates, task: Task) -> Tensor:
        work, devices = self._work(candidates, task)
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(preserved_rng(device))
            before = _random_states(devices)
            scores = work()
            if not all(map(torch.equal, before, _random_states(devices))):
                raise ValueError(
                    "your model, forward= or loss_fn draws random numbers in eval mode. In the background this would "
                    "make the random numbers of training depend on which thread is faster. Score without 'pipelined'"
                )
        if task.loss.writes_state:
            raise ValueError(
                f"your loss_fn ({type(task.loss.module).__name__}) changes its own buffers. In the background this "
                "would make scores depend on which thread is faster. Score without 'pipelined'"
            )
        return scores

    def _work(self, candidates: Candidates, task: Task) -> tuple[Callable[[], Tensor], set[torch.device]]:
        """Return the function that computes these scores, and its devices. Copies the model's weights first if due."""
        model = self._snapshot.next(task)
        there, back = device_of(model), device_of(task.model)

        def forward(model: nn.Module, data: Any) -> tuple[Any, Any]:
            # The outputs go back to the device of the model, because the loss may have weights there.
            there_and_back = task.forward(model, move(data, there, non_blocking=False))
            return tuple(move(there_and_back, back, non_blocking=False))

        own = dataclasses.replace(task, model=model, forward=task.forward if there == back else forward)
        return functools.partial(self.fresh.score_copy, candidates, own), {there, back}

    def _finish(self) -> None:
        """Wait for scores that nobody will ask for, because the copy must not change while it is used."""
        if self._submitted is not None:
            wait([self._submitted[1]])
            self._submitted = None

    def state_dict(self) -> dict[str, Any]:
        scores = self._known if self._submitted is None else self._submitted[1].result()
        return {
            "fresh": self.fresh.state_dict(),
            "check": self._check.state_dict(),
            "snapshot": self._snapshot.state_dict(),
            "scores": scores,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._finish()
        self.fresh.load_state_dict(state["fresh"])
        self._check.load_state_dict(state["check"])
        self._snapshot.load_state_dict(state["snapshot"])
        self._known = state["scores"]


def _random_states(devices: Iterable[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda")]
