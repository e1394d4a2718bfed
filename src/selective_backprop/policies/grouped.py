"""Select within each group of examples, such as a class, with a policy for each group."""

from __future__ import annotations

import copy
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from selective_backprop.policies.percentile import PercentilePolicy
from selective_backprop.policies.sizes import share_out
from selective_backprop.policies.top_k import TopKPolicy
from selective_backprop.types import Policy, Selection

_FixedSize = TopKPolicy | PercentilePolicy


def _keeps_fixed_sizes(policy: Policy) -> TypeGuard[_FixedSize]:
    """Whether the policy can be told how many candidates to keep."""
    return isinstance(policy, TopKPolicy) or (isinstance(policy, PercentilePolicy) and policy.fixed_size)


class GroupedPolicy(Policy):
    """Select within each group with a copy of one policy. With percentiles, each class has its own history.

    So a class that is harder than others does not take more than its share. If the policy keeps fixed sizes, the size
    for a candidate batch is divided among its groups in proportion to their sizes, and rounded by lot. The batch keeps
    as many as it would without groups, and each group gets its share in the long run.

    Args:
        policy: the policy to copy for each group.

    >>> from selective_backprop.policies import TopKPolicy
    >>> scores, classes = torch.tensor([9.0, 8.0, 2.0, 1.0]), torch.tensor([0, 0, 1, 1])
    >>> policy = GroupedPolicy(TopKPolicy(selectivity=0.5))
    >>> policy.select_in_groups(scores, torch.Generator(), classes).positions.tolist()
    [0, 2]
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.by_group: dict[int, Policy] = {}
        self.selectivity, self.weighting = policy.selectivity, policy.weighting
        self.with_replacement = policy.with_replacement

    def begin_epoch(self, epoch: int, num_epochs: int | None) -> None:
        for policy in (self.policy, *self.by_group.values()):
            policy.begin_epoch(epoch, num_epochs)

    def select(self, scores: Tensor, generator: torch.Generator) -> Selection:
        """Select with all candidates in one group."""
        return self.select_in_groups(scores, generator, torch.zeros(len(scores), dtype=torch.int64))

    def select_in_groups(self, scores: Tensor, generator: torch.Generator, groups: Tensor) -> Selection:
        """Select within each group. groups: (N,) the number of each candidate's group, such as its class."""
        order = groups.argsort(stable=True)
        numbers, sizes = torch.unique_consecutive(groups[order], return_counts=True)
        weights = torch.full((len(scores),), -1.0)
        probabilities = torch.empty(len(scores), dtype=torch.float64)
        repeats = torch.zeros(len(scores), dtype=torch.int64)
        numbers_and_rows = list(zip(numbers.tolist(), torch.split(order, sizes.tolist()), strict=True))
        selections = self._select_in_each(numbers_and_rows, sizes, scores, generator)
        for (_, rows), selection in zip(numbers_and_rows, selections, strict=True):
            chosen = rows[selection.positions]
            weights[chosen] = selection.weights
            repeats.index_add_(0, chosen, torch.ones_like(chosen))
            probabilities[rows] = selection.probabilities
        positions = torch.arange(len(scores)).repeat_interleave(repeats)
        return Selection(positions, weights[positions], probabilities)

    def _select_in_each(
        self, groups: list[tuple[int, Tensor]], sizes: Tensor, scores: Tensor, generator: torch.Generator
    ) -> list[Selection]:
        """Make a selection for each group. groups: the number and the rows of each."""
        for number, _ in groups:
            if number not in self.by_group:
                self.by_group[number] = copy.deepcopy(self.policy)
        whole = self.policy
        if not _keeps_fixed_sizes(whole):
            return self._select_by_coins(groups, scores, generator)
        averages, counts = share_out(whole.sizes.size_for(len(scores)), sizes, generator)
        selections = [
            cast(_FixedSize, self.by_group[number]).select_part(scores[rows], generator, average, count)
            for (number, rows), average, count in zip(groups, averages.tolist(), counts.tolist(), strict=True)
        ]
        whole.sizes.count_kept(len(scores), sum(len(selection.positions) for selection in selections))
        return selections

    def _select_by_coins(
        self, groups: list[tuple[int, Tensor]], scores: Tensor, generator: torch.Generator
    ) -> list[Selection]:
        whole = self.policy
        if not isinstance(whole, PercentilePolicy):
            return [self.by_group[number].select(scores[rows], generator) for number, rows in groups]
        # One share for all groups: a group has few candidates in each batch, and would be slow to make up for a miss.
        share = whole.debt.share_for(len(scores))
        policies = [cast(PercentilePolicy, self.by_group[number]) for number, _ in groups]
        selections = [
            policy.select_by_coins(scores[rows], generator, share)
            for policy, (_, rows) in zip(policies, groups, strict=True)
        ]
        whole.debt.count_kept(len(scores), sum(len(selection.positions) for selection in selections))
        return selections

    def explanation(self) -> str | None:
        return self.policy.explanation()

    def options_in_method(self) -> list[str]:
        """List the options of the policy that each group has."""
        return self.policy.options_in_method()

    def state_dict(self) -> dict[str, Any]:
        by_group = {number: policy.state_dict() for number, policy in self.by_group.items()}
        return {"by_group": by_group, "whole": self.policy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        by_group = {}
        for number, saved in state["by_group"].items():
            by_group[number] = copy.deepcopy(self.policy)
            by_group[number].load_state_dict(saved)
        self.policy.load_state_dict(state["whole"])
        self.by_group = by_group
