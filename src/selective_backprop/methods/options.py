"""Options that methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

from selective_backprop.method import Method
from selective_backprop.policies import GroupedPolicy, PercentilePolicy
from selective_backprop.pruning.prune import labels_by_id
from selective_backprop.schedules import Schedule
from selective_backprop.types import Policy, Scorer


class ScheduleOptions(TypedDict, total=False):
    """Options of `Schedule`."""

    warmup_epochs: float
    start: float
    end: float
    interrupt: int


class PercentileOptions(ScheduleOptions, total=False):
    """Options of `PercentilePolicy` and `Schedule`, and classes: one label per id, to select within each class."""

    beta: float
    history_size: int
    fixed_size: bool
    noise_guard: float
    unbiased: bool
    max_weight: float
    paper: bool
    classes: Tensor | Sequence[int]


OF_PERCENTILES = ("beta", "history_size", "fixed_size", "noise_guard", "unbiased", "max_weight", "paper")
"""Options of `PercentilePolicy`."""


def percentile_method(name: str, scorer: Scorer, selectivity: float | None, options: PercentileOptions) -> Method:
    """Make a method that selects with the chance percentile ** beta."""
    chosen = {key: options[key] for key in OF_PERCENTILES if key in options}  # type: ignore[literal-required]
    if selectivity is None and "beta" not in chosen:
        selectivity = 1 / 3
    return method_with(name, scorer, PercentilePolicy(selectivity=selectivity, **chosen), options)


def method_with(name: str, scorer: Scorer, policy: Policy, options: PercentileOptions) -> Method:
    """Make a method from its parts and the options of its schedule and classes."""
    known = PercentileOptions.__optional_keys__
    if unknown := set(options) - known:
        raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    timing = {key: options[key] for key in ScheduleOptions.__optional_keys__ if key in options}  # type: ignore[literal-required]
    classes = options.get("classes")
    if classes is not None:
        classes, policy = labels_by_id(classes), GroupedPolicy(policy)
    return Method(name, scorer, policy, Schedule(**timing), groups=classes)
