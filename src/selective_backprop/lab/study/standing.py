"""How every arm of a workload stands against plain training and against random subsets, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from selective_backprop.lab.study.frontier import (
    Bound,
    Budget,
    Frontier,
    Interval,
    Verdict,
    compute_multiplier,
    says_anything,
    verdict,
)

PLAIN, RANDOM = "traditional", "repeated_random"
"""Methods whose arms are the frontiers."""


@dataclass(frozen=True)
class LabelledRuns:
    """The runs of one method at one budget, under the label that tables show."""

    label: str
    method: str
    """The method's full name, such as "ledger_backprop"."""
    compute: Budget
    """Error and compute of each run."""
    seconds: Budget | None = None
    """Error and seconds of each run; None if other work on the machine disturbed the clock."""


@dataclass(frozen=True)
class Standing:
    """Runs of one label against the frontiers of their workload."""

    runs: LabelledRuns
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
        return self.runs.label

    @property
    def is_plain(self) -> bool:
        return self.runs.method == PLAIN

    @property
    def is_random(self) -> bool:
        return self.runs.method == RANDOM

    @property
    def is_baseline(self) -> bool:
        return self.is_plain or self.is_random

    @property
    def verdict(self) -> Verdict:
        """Verdict against both baselines; for a baseline, against the other one."""
        if self.is_plain:
            return Verdict.NOT_CHECKED
        return verdict([self.plain] if self.is_random else [self.plain, self.random])


def standings(found: Sequence[LabelledRuns]) -> list[Standing]:
    """Compare the runs of every label with the frontiers made of plain training and of random subsets among them.

    >>> made = [("traditional", (0.4, 0.4), 1), ("traditional", (0.2, 0.2), 4), ("ledger_backprop", (0.3, 0.3), 1)]
    >>> runs = [LabelledRuns(name, name, Budget(errors, (cost, cost))) for name, errors, cost in made]
    >>> str(standings(runs)[-1].plain), standings(runs)[-1].random
    ('2.00x (2.00 to 2.00)', None)
    """
    plain = _frontier([runs.compute for runs in found if runs.method == PLAIN])
    random = _frontier([runs.compute for runs in found if runs.method == RANDOM])
    clock = _frontier([runs.seconds for runs in found if runs.method == PLAIN and runs.seconds is not None])
    if random and plain and plain[-1].cost > random[-1].cost:
        random.append(plain[-1])  # random subsets of everything are plain training

    def against(baseline: list[Budget], budget: Budget | None, *, own: bool) -> Interval | None:
        return compute_multiplier(baseline, [budget]) if baseline and budget is not None and not own else None

    return [
        Standing(
            runs=runs,
            plain=against(plain, runs.compute, own=runs.method == PLAIN),
            random=against(random, runs.compute, own=runs.method == RANDOM),
            seconds=against(clock, runs.seconds, own=runs.method == PLAIN),
            lossless=Frontier(plain).is_lossless(runs.compute) if plain else None,
        )
        for runs in found
    ]


def _frontier(budgets: list[Budget]) -> list[Budget]:
    """The budgets by rising cost. Those of a single seed, which have no spread, are left out if there are others."""
    several = [budget for budget in budgets if len(budget.errors) > 1]
    return sorted(several or budgets, key=lambda budget: budget.cost)


# ---- in words


def winner(found: Sequence[Standing]) -> str:
    """One sentence on who won, among all arms, baselines included."""
    methods = [standing for standing in found if not standing.is_baseline]
    if not any(standing.is_plain for standing in found):
        return "Nothing can be said: plain training was not run."
    better = [standing for standing in methods if standing.verdict is Verdict.BETTER]
    if better:
        best = max(better, key=lambda standing: _at_least(standing.plain))
        return (
            f"**{best.label}** wins with an error of {error_of(best.runs.compute)}: for the same error plain training "
            f"needs **{_times(best.plain)} as much compute**, and random subsets need {_times(best.random)}."
        )
    random = [standing for standing in found if standing.is_random]
    ahead = [standing for standing in random if standing.verdict is Verdict.BETTER]
    if ahead and not any(standing.verdict is Verdict.WORSE for standing in random):
        best = max(ahead, key=lambda standing: _at_least(standing.plain))
        return (
            f"**Random subsets** win: for the error of {best.label}, {error_of(best.runs.compute)}, plain training "
            f"needs {_times(best.plain)} as much compute. {_no_method(methods, 'random subsets')}"
        )
    above = [standing for standing in methods if _is_above(standing.plain)]
    if above:
        best = max(above, key=lambda standing: _at_least(standing.plain))
        error = error_of(best.runs.compute)
        lead = f"for its error of {error} plain training needs {_times(best.plain)} as much compute"
        if not random:
            return (
                f"**{best.label}** is ahead of plain training: {lead}. Random subsets were not run, so nobody knows "
                "whether they do as well."
            )
        return (
            f"**No method beats both** plain training and random subsets. {best.label} is ahead of plain training "
            + (f"({lead}); {_against_random(best)}.")
        )
    return f"**Plain training is not beaten.** {_no_method(methods, 'plain training')}"


def _no_method(methods: Sequence[Standing], rival: str) -> str:
    if not methods:
        return "No other method was run."
    known = [standing for standing in methods if standing.plain is not None and says_anything(standing.plain)]
    if not known:
        return "No method can be compared: none has a compute at which plain training was run too."
    best = max(known, key=lambda standing: standing.plain.multiple.value if standing.plain else 0.0)
    closest = f"The closest is {best.label}: for its error plain training needs {_times(best.plain)} as much compute."
    return f"No method is told apart from {rival} for the better. {closest}"


def _against_random(standing: Standing) -> str:
    if standing.random is None or not says_anything(standing.random):
        return "random subsets were not run with as much compute"
    if verdict([standing.random]) is Verdict.WORSE:
        return f"random subsets do better: they need {_times(standing.random)} as much compute"
    return f"it is not told apart from random subsets, which need {_times(standing.random)} as much compute"


def cheapest_lossless(found: Sequence[Standing]) -> str:
    """One sentence on who reaches the best error of plain training with the least compute; "" where nobody can tell."""
    plain = [standing for standing in found if standing.is_plain]
    reached = [standing for standing in found if standing.lossless]
    if not plain or not reached:
        return ""
    own = min((standing for standing in reached if standing.is_plain), key=_cost, default=None)
    best = min(reached, key=_cost)
    if own is None or not best.is_plain:
        rest = f", plain training {_cost(own):.2f}" if own is not None else ""
        doubt = "" if best.verdict is Verdict.BETTER else f" ({best.verdict})"
        return (
            f"The best error of plain training is reached with the least compute by **{best.label}**{doubt}: "
            f"{error_of(best.runs.compute)} with {_cost(best):.2f} epochs{rest}."
        )
    others = [standing for standing in reached if not standing.is_baseline]
    runner_up = min(others, key=_cost, default=None)
    rest = (
        f"; {runner_up.label} needs {_cost(runner_up):.2f} for {error_of(runner_up.runs.compute)}"
        if runner_up is not None
        else "; no method reaches it"
    )
    return (
        f"The best error is reached with the least compute by **plain training**: {error_of(own.runs.compute)} with "
        f"{_cost(own):.2f} epochs{rest}."
    )


def _cost(standing: Standing) -> float:
    return standing.runs.compute.cost


def _times(interval: Interval | None) -> str:
    """A multiplier as it stands in a sentence."""
    if interval is None:
        return "an unknown number of times"
    if interval.multiple.bound is Bound.EXACT and interval.low is not None:
        return str(interval)
    return str(interval.multiple)


def _at_least(interval: Interval | None) -> float:
    """Low end of the interval, by which winners are ordered."""
    if interval is None:
        return 0.0
    return interval.multiple.value if interval.low is None else interval.low.value


def _is_above(interval: Interval | None) -> bool:
    return interval is not None and verdict([interval]) is Verdict.BETTER


def error_of(budget: Budget) -> str:
    """Mean error in percent, with its standard deviation over seeds.

    >>> error_of(Budget((0.01, 0.02), (1.0, 1.0))), error_of(Budget((0.01,), (1.0,)))
    ('1.50% ± 0.71', '1.00%')
    """
    spread = f" ± {100 * stdev(budget.errors):.2f}" if len(budget.errors) > 1 else ""
    return f"{100 * budget.error:.2f}%{spread}"


def alerts(found: Sequence[Standing]) -> list[str]:
    """What keeps the comparison from being convincing, a sentence each; the gravest first."""
    plain = [standing for standing in found if standing.is_plain]
    random = [standing for standing in found if standing.is_random]
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
    single = [standing.label for standing in found if len(standing.runs.compute.errors) == 1]
    if len(single) < len(found):
        baselines = [standing.label for standing in [*plain, *random] if standing.label in single]
        if baselines:
            sentences.append(f"One seed only, so not part of the frontier: {', '.join(baselines)}.")
    fewest = min((len(standing.runs.compute.errors) for standing in found if standing.label not in single), default=1)
    if found and fewest < 5:
        sentences.append(f"{fewest} seed{'s' if fewest > 1 else ''} only: differences may be chance.")
    for standing in methods:
        known = standing.random is not None and standing.random.low is not None and says_anything(standing.random)
        if _is_above(standing.plain) and known and not _is_above(standing.random):
            how = "better than" if standing.verdict is Verdict.WORSE else "as well as"
            sentences.append(f"Random subsets do {how} {standing.label}.")
    return sentences
