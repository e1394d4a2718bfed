"""How every arm of a workload stands against plain training and against random subsets, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from selective_backprop.lab.study.frontier import Arm, Bound, Frontier, Interval, Verdict, compute_multiplier, verdict

PLAIN, RANDOM = "traditional", "repeated_random"
"""Methods whose arms are the frontiers."""


@dataclass(frozen=True)
class NamedArm:
    """The runs of one method at one budget, under the label that tables show."""

    label: str
    method: str
    """The method's full name, such as "ledger_backprop"."""
    compute: Arm
    """Error and compute of each run."""
    seconds: Arm | None = None
    """Error and seconds of each run; None where other work on the machine disturbed the clock."""


@dataclass(frozen=True)
class Standing:
    """One arm against the frontiers of its workload."""

    named: NamedArm
    plain: Interval | None
    """Compute multiplier against plain training; None for plain training itself, and where it was not run."""
    random: Interval | None
    """Compute multiplier against random subsets; None for random subsets themselves, and where they were not run."""
    seconds: Interval | None
    """As `plain`, in seconds."""
    lossless: bool | None
    """Whether the error is within 2% of the best of plain training; None where that was not run."""

    @property
    def label(self) -> str:
        return self.named.label

    @property
    def is_baseline(self) -> bool:
        return self.named.method in (PLAIN, RANDOM)

    @property
    def verdict(self) -> Verdict:
        """Against both baselines; of a baseline, against the other one."""
        if self.named.method == PLAIN:
            return Verdict.NOT_CHECKED
        return verdict([self.plain] if self.named.method == RANDOM else [self.plain, self.random])


def standings(arms: Sequence[NamedArm]) -> list[Standing]:
    """Every arm against the frontiers that the plain and the random arms among them make.

    >>> runs = [("traditional", (0.4, 0.4), 1), ("traditional", (0.2, 0.2), 4), ("ledger_backprop", (0.3, 0.3), 1)]
    >>> arms = [NamedArm(name, name, Arm(errors, (cost, cost))) for name, errors, cost in runs]
    >>> str(standings(arms)[-1].plain), standings(arms)[-1].random
    ('2.00x (2.00 to 2.00)', None)
    """
    plain, random = (_frontier([arm.compute for arm in arms if arm.method == name]) for name in (PLAIN, RANDOM))
    clock = _frontier([arm.seconds for arm in arms if arm.method == PLAIN and arm.seconds is not None])
    return [
        Standing(
            named=arm,
            plain=None if plain is None or arm.method == PLAIN else compute_multiplier(plain, arm.compute),
            random=None if random is None or arm.method == RANDOM else compute_multiplier(random, arm.compute),
            seconds=None
            if clock is None or arm.seconds is None or arm.method == PLAIN
            else compute_multiplier(clock, arm.seconds),
            lossless=None if plain is None else plain.is_lossless(arm.compute),
        )
        for arm in arms
    ]


def _frontier(arms: Sequence[Arm]) -> Frontier | None:
    return Frontier(arms) if arms else None


# ---- in words


def winner(found: Sequence[Standing]) -> str:
    """One sentence on who won, among all arms, baselines included."""
    methods = [standing for standing in found if not standing.is_baseline]
    if not any(standing.named.method == PLAIN for standing in found):
        return "Nothing can be said: plain training was not run."
    better = [standing for standing in methods if standing.verdict is Verdict.BETTER]
    if better:
        best = max(better, key=lambda standing: _at_least(standing.plain))
        return (
            f"**{best.label}** wins: plain training needs **{_times(best.plain)} compute** for its error of "
            f"{error_of(best.named.compute)}, and random subsets need {_times(best.random)}."
        )
    random = [standing for standing in found if standing.named.method == RANDOM]
    ahead = [standing for standing in random if standing.verdict is Verdict.BETTER]
    if ahead:
        best = max(ahead, key=lambda standing: _at_least(standing.plain))
        return (
            f"**Random subsets** win: plain training needs {_times(best.plain)} compute for the error of {best.label}, "
            f"{error_of(best.named.compute)}. {_no_method(methods, 'random subsets')}"
        )
    if not random and any(_is_above(standing.plain) for standing in methods):
        best = max(methods, key=lambda standing: _at_least(standing.plain))
        return (
            f"**{best.label}** is ahead of plain training, which needs {_times(best.plain)} compute for its error of "
            f"{error_of(best.named.compute)}. Random subsets were not run, so nobody knows whether they do as well."
        )
    return f"**Plain training is not beaten.** {_no_method(methods, 'plain training')}"


def _no_method(methods: Sequence[Standing], rival: str) -> str:
    if not methods:
        return "No other method was run."
    best = max(methods, key=lambda standing: standing.plain.multiple.value if standing.plain else 0.0)
    closest = f"The closest is {best.label}: plain training needs {_times(best.plain)} compute for its error."
    return f"No method is told apart from {rival} for the better. {closest}"


def _times(interval: Interval | None) -> str:
    """A multiplier as it stands in a sentence."""
    if interval is None:
        return "an unknown multiple of its"
    if interval.multiple.bound is Bound.EXACT and interval.low is not None and interval.high is not None:
        return f"{interval.multiple.value:.2f}x ({interval.low.value:.2f} to {interval.high.value:.2f}) its"
    return f"{interval.multiple} its"


def _at_least(interval: Interval | None) -> float:
    """By which winners are ordered: the low end of the interval."""
    if interval is None:
        return 0.0
    return interval.multiple.value if interval.low is None else interval.low.value


def _is_above(interval: Interval | None) -> bool:
    return interval is not None and verdict([interval]) is Verdict.BETTER


def error_of(arm: Arm) -> str:
    """Mean error in percent, with its standard deviation over seeds.

    >>> error_of(Arm((0.01, 0.02), (1.0, 1.0))), error_of(Arm((0.01,), (1.0,)))
    ('1.50% ± 0.71', '1.00%')
    """
    spread = f" ± {100 * stdev(arm.errors):.2f}" if len(arm.errors) > 1 else ""
    return f"{100 * arm.error:.2f}%{spread}"


def alerts(found: Sequence[Standing]) -> list[str]:
    """What keeps the comparison from being convincing, a sentence each; the gravest first."""
    plain = [standing for standing in found if standing.named.method == PLAIN]
    random = [standing for standing in found if standing.named.method == RANDOM]
    methods = [standing for standing in found if not standing.is_baseline]
    sentences = []
    if not plain:
        sentences.append("Plain training was not run: no method can be judged.")
    elif len(plain) == 1:
        sentences.append(
            "Plain training was run at one budget only, so multipliers are bounds. Run several, such as --epochs 2,4,8."
        )
    if methods and not random:
        sentences.append("Random subsets were not run: what looks like a gain of selection may be one of fewer steps.")
    fewest = min((len(standing.named.compute.errors) for standing in found), default=0)
    if found and fewest < 3:
        sentences.append(f"{fewest} seed{'s' if fewest > 1 else ''} only: differences may be chance.")
    for standing in methods:
        ahead_of_plain = _is_above(standing.plain)
        if ahead_of_plain and standing.random is not None and not _is_above(standing.random):
            sentences.append(f"Random subsets do as well as {standing.label}.")
    return sentences
