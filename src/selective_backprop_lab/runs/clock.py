"""Measuring seconds by phase, on the CPU and on a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Adds up the seconds of phases. On a GPU it uses events, which make the host wait only when they are read.

    >>> clock = Clock(torch.device("cpu"))
    >>> with clock("forward"):
    ...     pass
    >>> 0 <= clock.read()["forward"] < 1
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if self._cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            end.record()
            self._events.append((phase, start, end))
        else:
            began = time.perf_counter()
            yield
            self._add(phase, time.perf_counter() - began)

    def _add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read(self) -> dict[str, float]:
        """Seconds of each phase since the last call. Waits for the GPU."""
        if self._events:
            torch.cuda.synchronize()
        for phase, start, end in self._events:
            self._add(phase, start.elapsed_time(end) / 1000)
        seconds, self._seconds, self._events = self._seconds, {}, []
        return seconds
