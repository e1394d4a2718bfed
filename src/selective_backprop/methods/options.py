"""Options that methods share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

from selective_backprop.method import Method
from selective_backprop.methods.length_cost import LengthCost
from selective_backprop.policies import GroupedPolicy, PercentilePolicy, TopKPolicy
from selective_backprop.pruning.prune import labels_by_id
from selective_backprop.schedules import Schedule
from selective_backprop.types import Policy, Scorer


class ScheduleOptions(TypedDict, total=False):
    """Options of `Schedule`."""

    warmup_epochs: float
    start: float
    end: float
    interrupt: int


class BatchOptions(ScheduleOptions, total=False):
    """Options of `Schedule`, and cost: what examples of different lengths cost."""

    cost: LengthCost


class PercentileOptions(BatchOptions, total=False):
    """Options of `PercentilePolicy` and `BatchOptions`, and classes: one label per id, to select within each class."""

    beta: float
    history_size: int
    fixed_size: bool
    noise_guard: float | str
    unbiased: bool
    max_weight: float
    paper: bool
    classes: Tensor | Sequence[int]


OF_PERCENTILES = ("beta", "history_size", "fixed_size", "noise_guard", "unbiased", "max_weight", "paper")
"""Options of `PercentilePolicy`."""


def percentile_method(name: str, scorer: Scorer, selectivity: float | None, options: PercentileOptions) -> Method:
    """Make a method that selects with the chance percentile ** beta."""
    chosen = {key: options[key] for key in OF_PERCENTILES if key in options}  # type: ignore[literal-required]
    if has_budget(options):
        refuse_with_budget(name, selectivity=selectivity, **chosen)
        return method_with(name, scorer, None, options, soft=True)
    if selectivity is None and "beta" not in chosen:
        selectivity = 1 / 3
    return method_with(name, scorer, PercentilePolicy(selectivity=selectivity, **chosen), options)


def has_budget(options: BatchOptions) -> bool:
    """Whether the option cost= has a budget, which decides how many examples are selected."""
    cost = options.get("cost")
    if cost is not None and not isinstance(cost, LengthCost):
        raise TypeError(f"cost must be a LengthCost, such as sb.LengthCost(lengths), got {cost!r:.200}")
    return cost is not None and cost.has_budget


def refuse_with_budget(method: str, **options: object) -> None:
    """Raise if one of these options was given next to a budget, which decides how many are selected."""
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(
            f"the budget of cost= decides how many examples {method} selects: leave out {', '.join(given)}, or leave "
            "out the budget"
        )


def method_with(
    name: str, scorer: Scorer, policy: Policy | None, options: PercentileOptions, *, soft: bool = False
) -> Method:
    """Make a method from its parts and the options of its schedule, classes and cost.

    Args:
        name: name of the method.
        scorer: its scorer.
        policy: its policy; None if cost= has a budget, which decides instead.
        options: the options that the user gave.
        soft: with a budget, select by chance.
    """
    known = PercentileOptions.__optional_keys__
    if unknown := set(options) - known:
        raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    timing = {key: options[key] for key in ScheduleOptions.__optional_keys__ if key in options}  # type: ignore[literal-required]
    classes, cost = options.get("classes"), options.get("cost")
    if classes is not None and cost is not None:
        raise ValueError(f"{name} selects within classes or within strata of length: leave out classes= or cost=")
    if cost is not None:
        has_budget(options)  # raises if it is no LengthCost
        policy = cost.budget(soft=soft) if policy is None else cost.wrap(policy)
        return Method(name, scorer, policy, Schedule(**timing), groups=cost.lengths)
    assert policy is not None
    if classes is not None:
        classes, policy = labels_by_id(classes), GroupedPolicy(policy)
    return Method(name, scorer, policy, Schedule(**timing), groups=classes)


def top_k_method(name: str, scorer: Scorer, selectivity: float | None, default: float, options: BatchOptions) -> Method:
    """Make a method that keeps the highest scores of each candidate batch, or of an epoch that is planned."""
    if has_budget(options):
        refuse_with_budget(name, selectivity=selectivity)
        return method_with(name, scorer, None, options)  # type: ignore[arg-type]
    policy = TopKPolicy(selectivity=default if selectivity is None else selectivity)
    return method_with(name, scorer, policy, options)  # type: ignore[arg-type]
