"""Pipelined scoring: the next candidates are scored while the model trains on the current ones."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from selective_backprop.inference import as_device, device_of, preserved_rng, to_eval
from selective_backprop.rows import move
from selective_backprop.scorers.base import FidelityCheck, FreshScorer
from selective_backprop.scorers.forward import ForwardScorer
from selective_backprop.types import Candidates, Task


class PipelinedScorer(FreshScorer):
    """Scores the next candidate batch in the background, with a copy of the model, during the current training step.

    The copy has the weights that the model had when the batch was submitted. So the selection never depends on which
    thread is faster.

    Some candidate batches are not submitted, and are scored at once with the same copy: the first one of an epoch, and
    all of them as long as an epoch keeps every candidate, because plain training loads nothing ahead.

    Args:
        fresh: scores the candidates; by default by their loss in eval mode.
        device: device of the copy, such as a second GPU; by default the device of the model.

    >>> PipelinedScorer().fresh.mode
    'eval'
    """

    def __init__(self, fresh: ForwardScorer | None = None, *, device: torch.device | str | None = None) -> None:
        fresh = ForwardScorer() if fresh is None else fresh
        if not isinstance(fresh, ForwardScorer):
            raise TypeError(f"pipelined scoring runs a copy of the model by a ForwardScorer, got {fresh!r}")
        if fresh.mode != "eval":
            raise ValueError("pipelined scoring runs a copy of the model in eval mode, got mode 'train'")
        self.fresh = fresh
        self.score_name = fresh.score_name
        self.device = None if device is None else as_device(device)
        self._check = FidelityCheck(ForwardScorer(measure=fresh.measure))
        self._snapshot = _Snapshot(self.device)
        self._background = _Background()
        self._submitted: tuple[Candidates, Future[Tensor]] | None = None
        self._known: Tensor | None = None  # saved scores of the candidates that were submitted before a resume

    def __deepcopy__(self, memo: dict[int, object]) -> PipelinedScorer:
        # Without the thread and the copy of the model.
        return PipelinedScorer(copy.deepcopy(self.fresh, memo), device=self.device)

    @property
    def fidelity(self) -> float:
        """Rank correlation of the scores with those of the current model, on the last sample; NaN before the first."""
        return self._check.fidelity

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
            future = self._background.run(*self._work(candidates, task))
        self._submitted = candidates, future

    def score(self, candidates: Candidates, task: Task) -> Tensor:
        if self._submitted is not None and self._submitted[0].data is candidates.data:
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
        """Return the function that computes these scores, and its devices. Copies the model's weights first."""
        model = self._snapshot.of(task.model)
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
            "scores": scores,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._finish()
        self.fresh.load_state_dict(state["fresh"])
        self._check.load_state_dict(state["check"])
        self._known = state["scores"]


def _random_states(devices: Iterable[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda")]


class _Background:
    """Runs work in a thread, and on CUDA devices in separate streams, so that training does not wait for it."""

    def __init__(self) -> None:
        # Streams are kept, because CUDA memory is cached separately for every stream.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self, work: Callable[[], Tensor], devices: Iterable[torch.device]) -> Future[Tensor]:
        """Begin to run work on these devices, after what the main thread has already queued on them."""
        streams = [self._stream(device) for device in devices if device.type == "cuda"]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))

        def job() -> Tensor:
            with ExitStack() as stack:
                for stream in streams:
                    stack.enter_context(torch.cuda.stream(stream))
                return work().to("cpu", torch.float32)  # waits for the stream here, and not in the main thread

        # The thread ends with its work, so that no thread runs when a DataLoader forks or the interpreter exits.
        # Starting a new one each time takes a few tenths of a millisecond.
        pool = ThreadPoolExecutor(1, thread_name_prefix="selective_backprop")
        future = pool.submit(job)
        pool.shutdown(wait=False)
        return future

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]


class _Snapshot:
    """A copy of the model in eval mode, on a device of its own if that is given.

    device: device of the copy; by default that of the model.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._layers: list[nn.Module] = []
        self._copy: nn.Module | None = None

    @torch.no_grad()
    def of(self, model: nn.Module) -> nn.Module:
        """Return the copy, with the weights and buffers that the model has now."""
        layers = list(model.modules())
        if self._copy is None or not _are_same(layers, self._layers) or _shapes(self._copy) != _shapes(model):
            self._layers, self._copy = layers, _private_copy(model, self.device)  # or layers were swapped
        for own, tensor in zip(_tensors(self._copy), _tensors(model), strict=True):
            own.copy_(tensor, non_blocking=True)
        return self._copy


def _private_copy(model: nn.Module, device: torch.device | None) -> nn.Module:
    try:
        private = to_eval(copy.deepcopy(model).requires_grad_(False))
    except Exception as error:  # whatever a module raises that cannot be copied
        raise ValueError(
            "pipelined scoring works by a copy of the model, and copy.deepcopy(model) failed: "
            f"{str(error).strip().partition(chr(10))[0]}. If the model has torch.nn.utils.weight_norm, "
            "torch.nn.utils.parametrizations.weight_norm can be copied; otherwise score without pipelining"
        ) from error
    return private if device is None else private.to(device)


def _are_same(layers: list[nn.Module], others: list[nn.Module]) -> bool:
    return len(layers) == len(others) and all(map(operator.is_, layers, others))


def _tensors(model: nn.Module) -> list[Tensor]:
    """Weights and buffers, those too that a state_dict leaves out."""
    return [*model.parameters(), *model.buffers()]


def _shapes(model: nn.Module) -> list[torch.Size]:
    return [tensor.shape for tensor in _tensors(model)]
