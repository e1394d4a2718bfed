"""A method: a scorer, a policy and a schedule under one name."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from selective_backprop.description import arguments
from selective_backprop.schedules import Guard, Schedule
from selective_backprop.types import Policy, Scorer


@dataclass(frozen=True)
class Method:
    """A named combination of parts. A recipe: every loader works on copies of its parts.

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
    """(M,) bool by id: candidates for good; the others are pruned. None: all."""
    groups: Tensor | None = None
    """(M,) int64 by id, such as classes: what a `GroupedPolicy` keeps apart."""
    batch_scale: float = 1.0
    """Training batches are this many times larger than asked."""

    def __post_init__(self) -> None:
        if not isinstance(self.scorer, Scorer):
            raise TypeError(
                f"scorer must be a Scorer, that is, made by a subclass of sb.scorers.Scorer, got {self.scorer!r}"
            )
        if not isinstance(self.policy, Policy):
            raise TypeError(
                f"policy must be a Policy, that is, made by a subclass of sb.policies.Policy, got {self.policy!r}"
            )
        if not isinstance(self.schedule, Schedule):
            raise TypeError(f"schedule must be a Schedule, got {self.schedule!r}")
        if self.groups is not None and not self.policy.keeps_groups_apart:
            raise TypeError(f"groups need a policy that keeps them apart, such as GroupedPolicy, got {self.policy!r}")

    def __repr__(self) -> str:
        """The name, and the options of all parts that are not their defaults.

        >>> from selective_backprop.methods import stale_selective_backprop
        >>> stale_selective_backprop(0.25, scoring="train")
        stale_selective_backprop(selectivity=0.25, every=3, scoring=ForwardScorer(mode='train'))
        """
        options: list[str] = []
        if not self.schedule.never_on:
            parts = (self.policy, self.scorer)
            options = [*(option for part in parts for option in part.options_in_method()), *arguments(self.schedule)]
        if self.groups is not None:
            options.append(f"classes=<{len(self.groups):,} labels>")
        name = self.name.rstrip(")")  # diet(...) encloses what it is made of
        inner, closing = f"{name}({', '.join(options)})", self.name[len(name) :]
        kept = "" if self.keep is None else f"keep=<{int(self.keep.sum()):,} of {len(self.keep):,}>"
        if kept and not closing:
            inner, kept = f"{inner[:-1]}{', ' if options else ''}{kept})", ""
        if isinstance(self.schedule, Guard):
            inner += ".guard()"
        return f"{inner}{', ' if kept else ''}{kept}{closing}"

    @property
    def needs_ids(self) -> bool:
        return self.scorer.needs.ids or self.keep is not None or self.groups is not None

    def guard(self, *, window: int = 50, patience: int = 1000) -> Method:
        """The same, with selection switched off while it costs more time than it saves, and on when that changes.

        Args:
            window: candidate batches over which time is measured.
            patience: candidate batches after which what was slower is tried again.

        >>> from selective_backprop.methods import selective_backprop
        >>> selective_backprop(1 / 3).guard().name
        'selective_backprop'
        """
        if not self.scorer.needs.selection_pass or self.scorer.needs.ids:
            raise ValueError(
                "a guard is for methods with a selection pass for every candidate, and what is skipped before loading "
                f"costs nothing: {self.name} decides before loading"
            )
        if type(self.schedule) is not Schedule:
            raise ValueError(f"{self.name} decides by itself when selection is on, by {self.schedule!r}")
        timing = {item.name: getattr(self.schedule, item.name) for item in dataclasses.fields(Schedule)}
        return dataclasses.replace(self, schedule=Guard(**timing, window=window, patience=patience))


def require_method(method: Any) -> None:
    """Raise for what is not a Method, with the call that was probably meant."""
    if isinstance(method, Method):
        return
    start = "method must be a Method, such as selective_backprop(selectivity=1/3)"
    if isinstance(method, str):
        import selective_backprop  # which imports this module

        names = selective_backprop.methods.__all__
        near = difflib.get_close_matches(method, names, 1)
        meant = f"pass the method itself, sb.{near[0]}()" if near else f"there are {', '.join(names)}"
        raise TypeError(f"{start}, got the word {method!r}: {meant}")
    if callable(method) and hasattr(method, "__name__"):
        name = method.__name__
        raise TypeError(f"{start}, got the function {name}: forgot the parentheses? Write {name}()")
    raise TypeError(f"{start}, got {method!r:.200}")
