"""The option cost= of methods: examples differ in length, so select by what a second of training buys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from selective_backprop.policies import BudgetPolicy, CostFit, CostPolicy
from selective_backprop.types import Policy

Lengths = Tensor | Sequence[int] | Callable[[Any], Tensor]
"""One length per id, or a function from a candidate batch to the lengths of its examples."""


class LengthCost:
    """Rank examples by score per cost within strata of length, and spend at most a budget in each epoch.

    The cost of an example of T tokens in a training step is a + b T + c T^2. The loader fits a, b and c to the training
    steps that it measures. So the clock has a say in what is selected, and two runs with the same seed may differ. Pass
    coefficients= for runs that can be repeated exactly, such as (0, 1, 0) to count tokens.

    Without a budget, the method keeps as many as it would anyway, in each stratum. With a budget, the budget decides
    how many: the highest scores per cost in each stratum, or with methods by percentile each with a chance. Then the
    method takes no selectivity. A first epoch in which no score is known trains on everything. The budget is for
    training steps: selection passes and loading come on top.

    Args:
        lengths: the number of tokens of each example, by id. For loaders without ids: a function from a candidate batch
            to the lengths of its examples, such as `lambda batch: batch["attention_mask"].sum(1)`.
        tokens_per_epoch: budget of tokens to train on in an epoch, padding not counted.
        seconds_per_epoch: budget of seconds for the training steps of an epoch. Everything is kept until enough steps
            are measured.
        ratio: an example of a stratum is less than this many times longer than another one of it. With infinity there
            is one stratum, and short examples may crowd out long ones.
        coefficients: a, b and c, instead of measuring them.

    >>> from selective_backprop.methods import ledger_backprop
    >>> ledger_backprop(cost=LengthCost([3, 5, 80, 90], tokens_per_epoch=90))
    ledger_backprop(tokens_per_epoch=90, max_age=10, lengths=<4 values>)
    """

    def __init__(
        self,
        lengths: Lengths,
        *,
        tokens_per_epoch: float | None = None,
        seconds_per_epoch: float | None = None,
        ratio: float = 2.0,
        coefficients: Sequence[float] | None = None,
    ) -> None:
        if tokens_per_epoch is not None and seconds_per_epoch is not None:
            raise ValueError(
                f"give a budget of tokens or of seconds, not both, got tokens_per_epoch={tokens_per_epoch} and "
                f"seconds_per_epoch={seconds_per_epoch}"
            )
        self.lengths: Tensor | Callable[[Any], Tensor] = lengths if callable(lengths) else _checked(lengths)
        self.tokens_per_epoch, self.seconds_per_epoch = tokens_per_epoch, seconds_per_epoch
        self.ratio, self.coefficients = ratio, coefficients
        if self.has_budget and callable(self.lengths):
            raise ValueError(
                "a budget per epoch needs the lengths of all examples, by id, to know what share of an epoch it pays "
                "for: pass lengths as a tensor, or leave out the budget and pass a selectivity to the method"
            )
        if self.has_budget:
            self.budget(soft=False)  # raises at once if an option is wrong
        else:
            CostFit(coefficients)

    @property
    def has_budget(self) -> bool:
        return self.tokens_per_epoch is not None or self.seconds_per_epoch is not None

    def wrap(self, policy: Policy) -> Policy:
        """Return the policy that selects with this one, by score per cost within strata."""
        if policy.unbiased or policy.gives_weights:
            raise ValueError(
                "cost= cannot be joined with unbiased=True: weights make up for what is not selected, and cost would "
                "not be what is saved. Leave out one of them"
            )
        return CostPolicy(policy, fit=CostFit(self.coefficients), ratio=self.ratio)

    def budget(self, *, soft: bool) -> Policy:
        """Return the policy that selects within the budget. soft: by chance, not the highest scores per cost."""
        lengths = self.lengths
        assert isinstance(lengths, Tensor)
        return BudgetPolicy(
            fit=CostFit(self.coefficients),
            moments=(len(lengths), int(lengths.sum()), int(lengths.square().sum())),
            tokens=self.tokens_per_epoch,
            seconds=self.seconds_per_epoch,
            soft=soft,
            ratio=self.ratio,
        )


def _checked(lengths: Tensor | Sequence[int]) -> Tensor:
    try:
        found = torch.as_tensor(lengths)
    except (TypeError, ValueError):
        found = torch.empty(0)
    if found.dim() != 1 or not len(found) or found.is_floating_point() or found.dtype == torch.bool:
        raise TypeError(
            "lengths must be whole numbers, one per id, or a function from a candidate batch to the lengths of its "
            f"examples; got {lengths!r:.200}"
        )
    if int(found.min()) < 1:
        ids = (found < 1).nonzero().flatten()[:5].tolist()
        raise ValueError(f"lengths must be at least 1, but those of the ids {ids} are not: leave out empty examples")
    return found.to("cpu", torch.int64)
