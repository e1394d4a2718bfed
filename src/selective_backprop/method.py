"""A method: a scorer, a policy and a schedule under one name."""

from __future__ import annotations

import copy
import difflib
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from selective_backprop.description import arguments, short
from selective_backprop.policies.grouped import GroupedPolicy
from selective_backprop.schedules import Schedule
from selective_backprop.types import Policy, Scorer


@dataclass(frozen=True)
class Method:
    """A named combination of scorer, policy and schedule. It is a recipe: every loader makes its own copies of them.

    >>> from selective_backprop.policies import UniformPolicy
    >>> from selective_backprop.scorers import ConstantScorer
    >>> Method("mine", scorer=ConstantScorer(), policy=UniformPolicy(selectivity=0.5)).name
    'mine'
    """

    name: str
    scorer: Scorer
    policy: Policy
    schedule: Schedule = field(default_factory=Schedule)
    keep: Tensor | None = None
    """(M,) bool by id: False for examples that are pruned from every epoch. None keeps all."""
    groups: Tensor | None = None
    """(M,) int64 by id: the group of each example, such as its class. A `GroupedPolicy` selects within groups."""
    batch_scale: float = 1.0
    """How many times larger training batches are than the batch size asked for."""

    def __post_init__(self) -> None:
        if not isinstance(self.scorer, Scorer):
            raise TypeError(f"scorer must be an object of a subclass of sb.scorers.Scorer, got {self.scorer!r}")
        if not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be an object of a subclass of sb.policies.Policy, got {self.policy!r}")
        if not isinstance(self.schedule, Schedule):
            raise TypeError(f"schedule must be a Schedule, got {self.schedule!r}")
        if self.groups is not None and not isinstance(self.policy, GroupedPolicy):
            raise TypeError(f"groups need a GroupedPolicy, which selects within each group, got {self.policy!r}")
        if self.plans_epochs and not self.schedule.known_ahead:
            raise ValueError(
                f"{self.name} cannot have {short(self.schedule)}, which decides from one candidate batch to the next: "
                f"{short(self.scorer)} decides about a whole epoch before it is loaded. Use a Schedule, or a scorer "
                "that scores every loaded batch"
            )

    def __repr__(self) -> str:
        """Show the name, and all options that are not the default.

        >>> from selective_backprop.methods import stale_selective_backprop
        >>> stale_selective_backprop(0.25, scoring="train")
        stale_selective_backprop(selectivity=0.25, every=3, scoring=ForwardScorer(mode='train'))
        """
        options: list[str] = []
        if not self.schedule.never_on:
            parts = (self.policy, self.scorer)
            options = [*(option for part in parts for option in part.options_in_method()), *arguments(self.schedule)]
        if self.groups is not None:
            options.append(f"classes=<{len(self.groups):,} values>")
        name = self.name.rstrip(")")  # the name of a diet encloses that of another method: diet(top_k)
        inner, closing = f"{name}({', '.join(options)})", self.name[len(name) :]
        kept = "" if self.keep is None else f"keep=<{int(self.keep.sum()):,} of {len(self.keep):,}>"
        if kept and not closing:
            inner, kept = f"{inner[:-1]}{', ' if options else ''}{kept})", ""
        return f"{inner}{', ' if kept else ''}{kept}{closing}"

    @property
    def needs_ids(self) -> bool:
        return self.scorer.needs.ids or self.keep is not None or self.groups is not None

    @property
    def plans_epochs(self) -> bool:
        """Whether the method ever decides about a whole epoch before it is loaded."""
        # Methods that plan some epochs only, such as Stale-SB, plan one of any two in a row.
        return not self.schedule.never_on and any(self.scorer.plans(epoch) for epoch in range(2))

    @property
    def needs_num_epochs(self) -> bool:
        """Whether the loader must know the length of the run."""
        try:
            copy.deepcopy(self.policy).begin_epoch(0, None)
        except ValueError:
            return True
        return self.schedule.needs_num_epochs


def require_method(method: Any) -> None:
    """Raise if this is not a Method, and suggest the call that was probably meant."""
    if isinstance(method, Method):
        return
    start = "method must be a Method, such as selective_backprop(selectivity=1/3)"
    if isinstance(method, str):
        import selective_backprop  # which imports this module

        names = selective_backprop.methods.__all__
        near = difflib.get_close_matches(method, names, 1)
        place = "sb" if near and near[0] in selective_backprop.__all__ else "sb.methods"
        meant = f"pass the method itself, {place}.{near[0]}()" if near else f"there are {', '.join(names)}"
        raise TypeError(f"{start}, got the word {method!r}: {meant}")
    if callable(method) and hasattr(method, "__name__"):
        name = method.__name__
        raise TypeError(f"{start}, got the function {name}: forgot the parentheses? Write {name}()")
    raise TypeError(f"{start}, got {method!r:.200}")
