"""A policy of its own for each group of examples, such as a class."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from selective_backprop.description import Described
from selective_backprop.types import Policy, Selection


class GroupedPolicy(Described):
    """Select within each group by a copy of one policy: with percentiles, a history per class.

    Classes that are harder on the whole then take no more than their share.

    Args:
        policy: the one to copy.

    >>> from selective_backprop.policies import TopKPolicy
    >>> scores, classes = torch.tensor([9.0, 8.0, 2.0, 1.0]), torch.tensor([0, 0, 1, 1])
    >>> GroupedPolicy(TopKPolicy(selectivity=0.5)).select(scores, torch.Generator(), classes).positions.tolist()
    [0, 2]
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.by_group: dict[int, Policy] = {}

    def select(self, scores: Tensor, generator: torch.Generator, groups: Tensor | None = None) -> Selection:
        """Choose within each group; without groups all candidates are one."""
        if groups is None:
            groups = torch.zeros(len(scores), dtype=torch.int64)
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

    def state_dict(self) -> dict[str, Any]:
        return {"by_group": {number: policy.state_dict() for number, policy in self.by_group.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.by_group = {}
        for number, saved in state["by_group"].items():
            self.by_group[number] = copy.deepcopy(self.policy)
            self.by_group[number].load_state_dict(saved)
