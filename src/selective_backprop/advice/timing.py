"""How long things take on this machine, compared fairly."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

import torch

from selective_backprop.inference import wait_for

Key = TypeVar("Key", bound=Hashable)


def time_in_turns(
    actions: Mapping[Key, Callable[[int], object]], device: torch.device, seconds: float
) -> dict[Key, list[float]]:
    """Seconds of each action, in turns, so that drift of the machine hits all alike; three turns at least.

    Args:
        actions: called with the number of the turn; the first, which chooses kernels and takes memory, is not counted.
        device: waited for before the clock is read.
        seconds: to spend.

    >>> {name: len(times) for name, times in time_in_turns({"a": abs}, torch.device("cpu"), seconds=0).items()}
    {'a': 3}
    """
    times: dict[Key, list[float]] = {key: [] for key in actions}
    for action in actions.values():
        action(0)
    end = time.perf_counter() + seconds
    turn = 0
    while turn < 3 or time.perf_counter() < end:
        for key, action in actions.items():
            wait_for(device)
            began = time.perf_counter()
            action(turn)
            wait_for(device)
            times[key].append(time.perf_counter() - began)
        turn += 1
    return times


def medians(times: Mapping[Key, list[float]]) -> dict[Key, float]:
    """The typical one of each."""
    return {key: median(values) for key, values in times.items()}
