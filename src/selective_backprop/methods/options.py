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


class WindowOptions(TypedDict, total=False):
    """Options of `Schedule` for methods that decide about whole epochs."""

    warmup_epochs: float
    start: float
    end: float


class ScheduleOptions(WindowOptions, total=False):
    """Options of `Schedule`."""

    interrupt: int


class PercentileOptions(ScheduleOptions, total=False):
    """Options of `PercentilePolicy` and `Schedule`, and classes: one label per id, to select within each class."""

    beta: float
    history_size: int
    fixed_size: bool
    falls_above: float
    unbiased: bool
    max_weight: float
    paper: bool
    classes: Tensor | Sequence[int]


def percentile_method(name: str, scorer: Scorer, selectivity: float | None, options: PercentileOptions) -> Method:
    """Make a method that selects with the chance percentile ** beta."""
    known = PercentileOptions.__optional_keys__
    if unknown := set(options) - known:
        raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    of_schedule = ScheduleOptions.__optional_keys__
    timing = {key: value for key, value in options.items() if key in of_schedule}
    of_policy = {key: value for key, value in options.items() if key not in of_schedule and key != "classes"}
    if selectivity is None and "beta" not in options:
        selectivity = 1 / 3
    policy = PercentilePolicy(selectivity=selectivity, **of_policy)  # type: ignore[arg-type]
    return method_by_class(name, scorer, policy, options.get("classes"), Schedule(**timing))  # type: ignore[arg-type]


def method_by_class(
    name: str, scorer: Scorer, policy: Policy, classes: Tensor | Sequence[int] | None, schedule: Schedule
) -> Method:
    """Make a method that selects within each class, or among all examples if there are no classes."""
    if classes is None:
        return Method(name, scorer, policy, schedule)
    return Method(name, scorer, GroupedPolicy(policy), schedule, groups=labels_by_id(classes))
