"""Options that methods share."""

from __future__ import annotations

import math
from typing import TypedDict

from selective_backprop.method import Method
from selective_backprop.options import require_numbers
from selective_backprop.policies import PercentilePolicy
from selective_backprop.schedules import Schedule
from selective_backprop.types import Scorer


class WindowOptions(TypedDict, total=False):
    """Options of `Schedule` for methods that decide about whole epochs."""

    warmup_epochs: float
    start: float
    end: float


class ScheduleOptions(WindowOptions, total=False):
    """Options of `Schedule`."""

    interrupt: int


class PercentileOptions(ScheduleOptions, total=False):
    """Options of `PercentilePolicy` and `Schedule`."""

    beta: float
    history_size: int
    fixed_size: bool
    unbiased: bool
    max_weight: float
    paper: bool


def percentile_method(name: str, scorer: Scorer, selectivity: float | None, options: PercentileOptions) -> Method:
    """Make a method that selects with the chance percentile ** beta."""
    known = PercentileOptions.__optional_keys__
    if unknown := set(options) - known:
        raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    of_schedule = ScheduleOptions.__optional_keys__
    timing = {key: value for key, value in options.items() if key in of_schedule}
    of_policy = {key: value for key, value in options.items() if key not in of_schedule}
    if selectivity is None and "beta" not in options:
        selectivity = 1 / 3
    policy = PercentilePolicy(selectivity=selectivity, **of_policy)  # type: ignore[arg-type]
    return Method(name, scorer, policy, Schedule(**timing))  # type: ignore[arg-type]


def first_selecting_epoch(options: PercentileOptions) -> int:
    """Return the first epoch that begins after the warm-up."""
    warmup_epochs = options.get("warmup_epochs", 0)
    require_numbers(warmup_epochs=warmup_epochs)
    return math.ceil(warmup_epochs)
