"""Measures how long actions take, so that they can be compared fairly."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from selective_backprop.inference import wait_for

Key = TypeVar("Key", bound=Hashable)


def time_in_turns(
    actions: Mapping[Key, Callable[[int], object]], device: torch.device, seconds: float
) -> dict[Key, list[float]]:
    """Measure the seconds of each action, in at least three turns. A machine that slows down affects all alike.

    Args:
        actions: functions of the number of the turn. The first turn is not counted: it chooses kernels and takes
        memory. device: is waited for before the clock is read.
        seconds: time to spend.

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
