"""Select within each group of examples, such as a class, with a policy for each group."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from selective_backprop.types import Policy, Selection


class GroupedPolicy(Policy):
    """Select within each group with a copy of one policy. So a class that is harder than others takes only its share.

    Each copy sees the candidates of its own group alone. If these are few in a candidate batch, let it keep fixed
    sizes: coins are slow to make up for what they missed.

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
        for number, rows in zip(numbers.tolist(), torch.split(order, sizes.tolist()), strict=True):
            if number not in self.by_group:
                self.by_group[number] = copy.deepcopy(self.policy)
            selection = self.by_group[number].select(scores[rows], generator)
            chosen = rows[selection.positions]
            weights[chosen] = selection.weights
            repeats.index_add_(0, chosen, torch.ones_like(chosen))
            probabilities[rows] = selection.probabilities
        positions = torch.arange(len(scores)).repeat_interleave(repeats)
        return Selection(positions, weights[positions], probabilities)

    def explanation(self) -> str | None:
        return next((said for policy in self.by_group.values() if (said := policy.explanation())), None)

    def options_in_method(self) -> list[str]:
        """List the options of the policy that each group has."""
        return self.policy.options_in_method()

    def state_dict(self) -> dict[str, Any]:
        return {"by_group": {number: policy.state_dict() for number, policy in self.by_group.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        by_group = {}
        for number, saved in state["by_group"].items():
            by_group[number] = copy.deepcopy(self.policy)
            by_group[number].load_state_dict(saved)
        self.by_group = by_group
