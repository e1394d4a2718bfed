"""Select by what a second of training buys: score per cost, within strata of length.

# N = candidates, T = length of a candidate in tokens
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from selective_backprop import functional
from selective_backprop.policies.cost_fit import CostFit, Share
from selective_backprop.policies.grouped import GroupedPolicy
from selective_backprop.types import Policy, Selection


def strata_of(lengths: Tensor, ratio: float) -> Tensor:
    """Number the strata of length. In a stratum, the longest is less than `ratio` times as long as the shortest.

    >>> strata_of(torch.tensor([1, 3, 4, 7, 8]), ratio=2.0).tolist()
    [0, 1, 2, 2, 3]
    """
    if ratio == float("inf"):
        return torch.zeros(len(lengths), dtype=torch.int64)
    # The small number keeps powers of the ratio in the stratum that they begin.
    return (lengths.to(torch.float64).clamp(min=1).log() / math.log(ratio) + 1e-9).floor().to(torch.int64)


class _ByLength(Policy):
    """What policies that know lengths and costs have in common. Lengths are the groups of `select_in_groups`."""

    keeps_groups_apart = True
    groups_name = "lengths"
    fit: CostFit

    def _check(self, ratio: float) -> None:
        if not ratio > 1:
            raise ValueError(f"ratio must be above 1, got {ratio}: lengths of one stratum may differ by this factor")

    @property
    def measures_steps(self) -> bool:  # type: ignore[override]
        return self.fit.measures

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Select among candidates of the same length."""
        return self.select_in_groups(scores, generator, torch.ones(len(scores), dtype=torch.int64))

    def observe_step(self, groups: Tensor, seconds: float) -> None:
        self.fit.observe(groups, seconds)

    def exchange(self, share: Share) -> None:
        self.fit.exchange(share)


class CostPolicy(_ByLength):
    """Select with another policy by score per cost, within each stratum of length.

    Lengths are passed as the groups of `select_in_groups`. Strata keep short texts from crowding out long ones: each
    stratum is selected from by itself, like a class. If some scores are negative, each counts by how far it is above
    the smallest.

    Args:
        policy: selects within each stratum.
        fit: the cost of an example by its length.
        ratio: how many times longer than the shortest an example of the same stratum may be. With infinity there is
            one stratum; the closer to 1, the less costs matter.

    >>> from selective_backprop.policies import TopKPolicy
    >>> policy = CostPolicy(TopKPolicy(selectivity=0.5), fit=CostFit((0, 1, 0)))
    >>> scores, lengths = torch.tensor([3.0, 3.2, 1.0, 1.5]), torch.tensor([17, 31, 5, 6])
    >>> policy.select_in_groups(scores, torch.Generator(), lengths).positions.tolist()
    [0, 3]
    """

    def __init__(self, policy: Policy, *, fit: CostFit, ratio: float = 2.0) -> None:
        self._check(ratio)
        self.policy, self.fit, self.ratio = policy, fit, ratio
        self._grouped = GroupedPolicy(policy)
        self.gives_weights, self.unbiased = policy.gives_weights, policy.unbiased
        self.with_replacement, self.takes_negative_scores = policy.with_replacement, policy.takes_negative_scores
        self.selectivity, self.paper = policy.selectivity, policy.paper

    def select_in_groups(self, scores: Tensor, generator: torch.Generator, groups: Tensor) -> Selection:
        per_cost = _per_cost(scores, self.fit.costs(groups))
        return self._grouped.select_in_groups(per_cost, generator, strata_of(groups, self.ratio))

    def options_in_method(self) -> list[str]:
        """List the options of the policy within strata."""
        return self.policy.options_in_method()

    def state_dict(self) -> dict[str, Any]:
        return {"fit": self.fit.state_dict(), "strata": self._grouped.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._grouped.load_state_dict(state["strata"])
        self.fit.load_state_dict(state["fit"])


class BudgetPolicy(_ByLength):
    """Keep the candidates with the highest score per cost in each stratum of length, as many as a budget allows.

    The budget is for an epoch. Each stratum of each selection gets the same share of what it would cost to train on
    all of it, so an epoch that offers every example once spends the budget on average. The candidate that only partly
    fits is kept by chance, and so are candidates with equal scores.

    Args:
        fit: the cost of an example by its length.
        moments: number of examples, sum of their lengths and sum of their squared lengths, over an epoch.
        tokens: the budget in tokens per epoch.
        seconds: the budget in seconds of training steps per epoch, instead of tokens. As long as too few steps were
            measured, everything is kept.
        soft: give each candidate the chance percentile ** beta in its stratum, where beta is such that the expected
            cost fits the budget.
        ratio: as in `CostPolicy`.

    >>> policy = BudgetPolicy(fit=CostFit((0, 1, 0)), moments=(4, 80, 2000), tokens=40)
    >>> scores, lengths = torch.tensor([3.0, 9.0, 1.0, 1.5]), torch.tensor([30, 30, 10, 10])
    >>> policy.select_in_groups(scores, torch.Generator(), lengths).positions.tolist()
    [1, 3]
    """

    def __init__(
        self,
        *,
        fit: CostFit,
        moments: tuple[int, int, int],
        tokens: float | None = None,
        seconds: float | None = None,
        soft: bool = False,
        ratio: float = 2.0,
    ) -> None:
        if (tokens is None) == (seconds is None):
            raise ValueError(f"a budget is in tokens or in seconds: give one of both, got {tokens} and {seconds}")
        for name, value in {"tokens": tokens, "seconds": seconds}.items():
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"a budget of {name} per epoch must be above 0, got {value}")
        self._check(ratio)
        self.fit, self.moments, self.soft, self.ratio = fit, moments, soft, ratio
        self.tokens, self.seconds = tokens, seconds

    @property
    def cost_share(self) -> float:
        """The share of an epoch's cost that the budget pays for; 1 if the budget pays for all."""
        count, total, squares = self.moments
        if self.tokens is not None:
            return min(1.0, self.tokens / total)
        if self.fit.known is None:
            return 1.0
        a, b, c = self.fit.known
        return min(1.0, (self.seconds or 0.0) / (a * count + b * total + c * squares))

    def select_in_groups(self, scores: Tensor, generator: torch.Generator, groups: Tensor) -> Selection:
        share, chances = self.cost_share, torch.ones(len(scores), dtype=torch.float64)
        if share < 1 and len(scores):
            costs = self.fit.costs(groups)
            per_cost = _per_cost(scores, costs)
            spent = groups.to(torch.float64) if self.tokens is not None else costs
            strata = strata_of(groups, self.ratio)
            order = strata.argsort(stable=True)
            sizes = torch.unique_consecutive(strata[order], return_counts=True)[1].tolist()
            chances_of = _soft_chances if self.soft else _hard_chances
            for rows in torch.split(order, sizes):
                chances[rows] = chances_of(per_cost[rows], spent[rows], share)
        positions = functional.flip_coins(chances, generator)
        return Selection(positions, torch.ones(positions.shape), chances)

    def options_in_method(self) -> list[str]:
        """List the budget."""
        name, value = ("tokens", self.tokens) if self.tokens is not None else ("seconds", self.seconds)
        return [f"{name}_per_epoch={value:g}"]

    def state_dict(self) -> dict[str, Any]:
        return {"fit": self.fit.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fit.load_state_dict(state["fit"])


def _per_cost(scores: Tensor, costs: Tensor) -> Tensor:
    return (functional.loss_above_smallest(scores).to(torch.float64) / costs).to(torch.float32)


def _hard_chances(scores: Tensor, costs: Tensor, share: float) -> Tensor:
    """Return 1 for the highest scores that fit the budget, a fraction where the budget ends, and 0 for the rest.

    >>> _hard_chances(torch.tensor([1.0, 9.0, 5.0]), torch.tensor([10.0, 10.0, 10.0]), share=0.5).tolist()
    [0.0, 1.0, 0.5]
    """
    values, which = torch.unique(scores, return_inverse=True)
    of_value = torch.zeros(len(values), dtype=torch.float64).index_add_(0, which, costs.to(torch.float64))
    higher = of_value.sum() - of_value.cumsum(0)
    left = share * of_value.sum() - higher
    return (left / of_value.clamp(min=1e-300)).clamp(0, 1)[which]


def _soft_chances(scores: Tensor, costs: Tensor, share: float) -> Tensor:
    """Return percentile ** beta for the beta whose expected cost is this share.

    >>> _soft_chances(torch.tensor([1.0, 9.0]), torch.tensor([10.0, 10.0]), share=0.5).tolist()
    [0.25, 0.75]
    """
    ordered = scores.sort().values
    below, up_to = torch.searchsorted(ordered, scores), torch.searchsorted(ordered, scores, right=True)
    costs = costs.to(torch.float64)
    goal, low, high = share * float(costs.sum()), 0.0, 1.0
    chances = torch.ones(len(scores), dtype=torch.float64)

    def cost_of(beta: float) -> float:
        nonlocal chances
        chances = functional.mean_keep_probability(below, up_to, len(scores), beta)
        return float(chances @ costs)

    while cost_of(high) > goal:
        low, high = high, 2 * high + 1
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if cost_of(middle) > goal else (low, middle)
        if high - low < 1e-12 * high:
            break
    cost_of(high)
    return chances
