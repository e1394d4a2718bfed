"""How every method of a workload stands against plain training and random subsets, in numbers and in words.

Every method has a frontier of its own: error against compute, at each length that it was trained for. For an error e,

    M(e) = (compute at which plain training reaches e) / (compute at which the method reaches e)

and likewise against random subsets, of one size and of the sizes that the method's own subsets had in each epoch: then
only the choice of examples is left. A method's M is the lowest of the three. All methods are compared at the same
errors, the targets, which are errors of plain training: at its second length (cheap), at its middle length (middle),
and within 2% of its best one (lossless).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev

from selective_backprop_lab.study.curves import Curve
from selective_backprop_lab.study.frontier import (
    EQUAL_COST,
    LOSSLESS,
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
"""Methods whose runs are the baselines."""
AS = "random as "
"""Begins the label of random subsets that have the sizes of a method's, epoch by epoch; the method's label follows."""
TARGETS = {
    "lossless": "within 2% of plain training's best",
    "middle": "that of plain training at its middle length",
    "own": "the lowest that a method reached",
}
"""Errors at which a comparison is judged, in words; the one that people want most comes first."""


# ---- numbers


def targets_of(plain: Sequence[Budget]) -> dict[str, float]:
    """Errors of plain training by the name of the target."""
    frontier = Frontier(plain)
    errors = [budget.error for budget in frontier.budgets]
    cheap, middle = errors[min(1, len(errors) - 1)], errors[len(errors) // 2]
    lossless = LOSSLESS * frontier.best
    return {"cheap": max(cheap, frontier.best), "middle": max(middle, frontier.best), "lossless": lossless}


def random_frontier(random: Sequence[Budget], plain: Sequence[Budget]) -> list[Budget]:
    """Random subsets of everything are plain training: its longer runs go on where the longest run of a subset ends."""
    dearest = max(budget.cost for budget in random)
    return [*random, *(budget for budget in plain if budget.cost > dearest)]


def multipliers(
    baseline: Sequence[Budget], own: Sequence[Budget], targets: Mapping[str, float], *, resamples: int = 2000
) -> dict[str, Interval]:
    """Compute multiplier against a baseline at each target."""
    return {name: compute_multiplier(baseline, own, error, resamples=resamples) for name, error in targets.items()}


def lowest(*against: Interval | None) -> Interval | None:
    """The lowest of the multipliers that are known."""
    known = [interval for interval in against if interval is not None]
    return min(known, key=sortable) if known else None


def sortable(interval: Interval | None) -> tuple[bool, float]:
    """Key that puts a lower multiplier first, and upper bounds before all others."""
    if interval is None:
        return False, 0.0
    return interval.multiple.bound is not Bound.LESS, interval.multiple.value


@dataclass(frozen=True)
class Standing:
    """A method at all its lengths, against the baselines."""

    name: str
    """Name that tables show."""
    method: str
    """The method's full name, such as "ledger_backprop"."""
    budgets: tuple[Budget, ...]
    """Errors and costs at each length, by rising cost."""
    plain: Mapping[str, Interval]
    """Multiplier against plain training by target; empty for plain training itself, and where it was not run."""
    random: Mapping[str, Interval]
    """As `plain`, against random subsets."""
    matched: Mapping[str, Interval] = field(default_factory=dict)
    """As `plain`, against random subsets of the method's own sizes; empty where they were not run."""

    @property
    def is_plain(self) -> bool:
        return self.name == PLAIN

    @property
    def is_random(self) -> bool:
        return self.name == RANDOM

    def multiplier(self, target: str) -> Interval | None:
        """The lowest multiplier; for random subsets the one against plain training, for plain training none."""
        return lowest(self.plain.get(target), self.against_random(target))

    def against_random(self, target: str) -> Interval | None:
        """The lower of the multipliers against random subsets: of one size, and of the method's own sizes."""
        return lowest(self.random.get(target), self.matched.get(target))

    def verdict(self, target: str) -> Verdict:
        """Verdict against all baselines; for random subsets against plain training, for plain training none."""
        if self.is_plain:
            return Verdict.NOT_CHECKED
        against = [self.plain.get(target)] if self.is_random else [self.plain.get(target), self.random.get(target)]
        return verdict([*against, *([self.matched[target]] if self.matched else [])])

    def reaches(self, error: float) -> bool:
        """Whether the mean error got as low as this at any length."""
        return Frontier(self.budgets).best <= error


@dataclass(frozen=True)
class Standings:
    """All methods of a workload, and the errors at which they are compared."""

    targets: Mapping[str, float]
    """By name, those of `TARGETS` that plain training has; empty where it was not run."""
    methods: tuple[Standing, ...]
    unit: str = "epochs of compute"
    """What costs are counted in."""

    @property
    def plain(self) -> Standing | None:
        return next((one for one in self.methods if one.is_plain), None)

    @property
    def random(self) -> Standing | None:
        return next((one for one in self.methods if one.is_random), None)

    @property
    def others(self) -> list[Standing]:
        """Methods that are no baseline."""
        return [one for one in self.methods if not one.is_plain and not one.is_random]


@dataclass(frozen=True)
class LabelledRuns:
    """The runs of one method at one length, under the label that tables show."""

    label: str
    method: str
    """The method's full name."""
    compute: Budget
    """Error and compute of each run."""
    seconds: Budget | None = None
    """Error and seconds of each run; None if other work on the machine disturbed the clock."""

    @classmethod
    def of(cls, label: str, method: str, curves: Sequence[Curve], *, clock: bool) -> LabelledRuns:
        """The ends of these runs. With clock, their seconds can be compared."""
        errors, compute, seconds = zip(*((c.errors[-1], c.compute[-1], c.seconds[-1]) for c in curves), strict=True)
        timed = Budget(errors, seconds) if clock and min(seconds) > 0 else None
        return cls(label, method, Budget(errors, compute), timed)

    @property
    def name(self) -> str:
        """The label without its length.

        >>> LabelledRuns("ledger, 4 epochs", "ledger_backprop", Budget((0.1,), (1.0,))).name
        'ledger'
        """
        return self.label.partition(", ")[0]

    @property
    def is_baseline(self) -> bool:
        """Whether it is plain training or random subsets, and not a variant of them with a name of its own."""
        return self.method in (PLAIN, RANDOM) and self.name.partition(" ")[0] == self.method


def standings(found: Sequence[LabelledRuns], *, seconds: bool = False) -> Standings:
    """Compare all methods among these runs at the targets.

    Lengths with a single seed, which has no spread, are left out if the method has others.

    Args:
        found: all runs of a workload.
        seconds: whether seconds are counted in place of compute; runs without seconds are then left out.

    >>> made = [("traditional", 0.4, 1), ("traditional", 0.2, 4), ("ledger", 0.4, 1), ("ledger", 0.2, 2)]
    >>> runs = [LabelledRuns(name, name, Budget((error, error), (cost, cost))) for name, error, cost in made]
    >>> ledger = standings(runs).methods[-1]
    >>> str(ledger.plain["lossless"]), dict(ledger.random)
    ('1.97x (1.97 to 1.97)', {})
    """
    by_name: dict[str, list[Budget]] = {}
    full_names: dict[str, str] = {}
    for runs in found:
        name = runs.method if runs.is_baseline else runs.name
        budget = runs.seconds if seconds else runs.compute
        if budget is not None:
            by_name.setdefault(name, []).append(budget)
            full_names[name] = runs.method
    by_name = {name: _usable(budgets) for name, budgets in by_name.items()}
    plain, random = by_name.get(PLAIN), by_name.get(RANDOM)
    matched = {name.removeprefix(AS): by_name.pop(name) for name in list(by_name) if name.startswith(AS)}
    targets = _targets(plain or [], [one for name in by_name if name not in (PLAIN, RANDOM) for one in by_name[name]])
    dense = random_frontier(random, plain) if random and plain else random
    return Standings(
        targets,
        tuple(
            Standing(
                name=name,
                method=full_names[name],
                budgets=tuple(budgets),
                plain=multipliers(plain, budgets, targets) if plain and name != PLAIN else {},
                random=multipliers(dense, budgets, targets) if dense and name not in (PLAIN, RANDOM) else {},
                matched=multipliers(random_frontier(matched[name], plain or []), budgets, targets)
                if name in matched
                else {},
            )
            for name, budgets in sorted(by_name.items(), key=lambda item: (item[0] != PLAIN, item[0] != RANDOM))
        ),
        "seconds" if seconds else "epochs of compute",
    )


def _targets(plain: Sequence[Budget], own: Sequence[Budget]) -> dict[str, float]:
    """The errors of `TARGETS`, those first that a method reached.

    If methods reached none of them, the lowest that they did is one, unless plain training is there at once.
    """
    if not plain:
        return {}
    errors, best = targets_of(plain), min((budget.error for budget in own), default=0.0)
    wanted = ["lossless", *(["middle"] if errors["middle"] > errors["lossless"] else [])]
    if max(errors[name] for name in wanted) < best <= max(budget.error for budget in plain):
        wanted, errors["own"] = ["own", *wanted], best
    return {name: errors[name] for name in sorted(wanted, key=lambda name: bool(own) and errors[name] < best)}


def _usable(budgets: list[Budget]) -> list[Budget]:
    several = [budget for budget in budgets if len(budget.errors) > 1]
    return sorted(several or budgets, key=lambda budget: budget.cost)


# ---- words


def winner(found: Standings) -> str:
    """One sentence on who won, among all methods, baselines included."""
    if found.plain is None:
        return "Nothing can be said: plain training was not run."
    for target in found.targets:
        if better := [one for one in found.others if one.verdict(target) is Verdict.BETTER]:
            best = max(better, key=lambda one: _low_end(one.multiplier(target)))
            return f"**{best.name} wins**: {_needs(found, best, target)}."
    for target in found.targets:
        if found.random is not None and found.random.verdict(target) is Verdict.BETTER:
            return f"**Random subsets win**: {_needs(found, found.random, target)}. {_closest(found)}"
    for target in found.targets:
        if ahead := [one for one in found.others if verdict([one.plain[target]]) is Verdict.BETTER]:
            if found.random is not None:
                return f"**No method beats both** plain training and random subsets. {_closest(found)}"
            best = max(ahead, key=lambda one: _low_end(one.plain[target]))
            return (
                f"**{best.name} is ahead of plain training**: {_needs(found, best, target)}. Random subsets were not "
                "run, so nobody knows whether they do as well."
            )
    if all(len(budget.errors) == 1 for one in found.methods for budget in one.budgets):
        return f"**One seed proves nothing.** {_closest(found)}"
    return f"**Plain training is not beaten.** {_closest(found)}"


def _error(found: Standings, target: str) -> str:
    return f"an error of {found.targets[target]:.2%} ({TARGETS[target]})"


def _needs(found: Standings, one: Standing, target: str) -> str:
    """How much more the baselines need than a method for the error of a target."""
    against = one.against_random(target)
    # Beyond their longest run random subsets count as plain training; a table calls such errors not reached.
    reached = found.random is None or target in one.matched or found.random.reaches(found.targets[target])
    needs = "did not reach it" if against is None or not reached else f"need {_times(against)}"
    random = "" if against is None else f", and random subsets {needs}"
    plain = f"plain training needs **{_times(one.plain[target])} as much compute**"
    return f"for {_error(found, target)} {plain}{random}"


def _closest(found: Standings) -> str:
    """A sentence on the method with the highest multiplier, where none beats both baselines for sure."""
    if not found.others:
        return "No other method was run."
    for target, error in found.targets.items():
        known = [
            one
            for one in found.others
            if one.reaches(error) and (interval := one.multiplier(target)) is not None and says_anything(interval)
        ]
        if known:
            best = max(known, key=lambda one: sortable(one.multiplier(target)))
            return f"The closest is {best.name}: {_needs(found, best, target)}."
    reached = [one.name for one in found.others if one.reaches(error)]
    if not reached:
        return f"No method reached {_error(found, target)}."
    return (
        f"{', '.join(reached)} and plain training reached {_error(found, target)}, but not at lengths that tell which "
        "needs less compute for it. Run more lengths, such as --epochs 2,4,8."
    )


def saved(found: Standings) -> str:
    """One sentence in everyday words: what each method needs for plain training's best error.

    If no method got that low, it is the error of plain training's middle length.
    """
    others = [one for one in found.methods if not one.is_plain]
    if found.plain is None or not others:
        return ""
    reached = (name for name, error in found.targets.items() if any(one.reaches(error) for one in others))
    target = next(reached, "lossless")
    best = Frontier(found.plain.budgets).best
    error = f"its error of {best:.2%}"
    if target != "lossless":
        error = f"an error of {found.targets[target]:.2%}, as no other method got to {best:.2%}"
    parts = [f"{'random subsets' if one.is_random else one.name} {_less_or_more(one.plain[target])}" for one in others]
    return f"Compared with plain training, for {error}: {'; '.join(parts)}."


def _less_or_more(interval: Interval) -> str:
    """What a multiplier saves.

    >>> from selective_backprop_lab.study.frontier import Multiple
    >>> _less_or_more(Interval(Multiple(1.5), Multiple(1.2), Multiple(2.0)))
    'needed 33% less compute'
    >>> _less_or_more(Interval(Multiple(0.8), Multiple(0.6), Multiple(1.1)))
    'needed 25% more compute (which may be chance)'
    """
    multiple = interval.multiple
    if multiple.value == math.inf:
        return "reached it in its shortest run, as plain training did"
    if multiple.bound is Bound.LESS:
        return "did not reach it"
    words = f"needed {'at least ' if multiple.bound is Bound.MORE else ''}{_share(multiple.value)} compute"
    if words == "needed as much compute":
        return words
    if interval.low is None or interval.high is None:
        return f"{words} (one seed)"
    if verdict([interval]) is Verdict.SAME:
        return f"{words} (which may be chance)"
    return words


def _share(multiple: float) -> str:
    if 1 / EQUAL_COST <= multiple <= EQUAL_COST:
        return "as much"
    return f"{1 - 1 / multiple:.0%} less" if multiple >= 1 else f"{1 / multiple - 1:.0%} more"


def _times(interval: Interval) -> str:
    """A multiplier as it stands in a sentence."""
    return str(interval.multiple if interval.low is None else interval)


def _low_end(interval: Interval | None) -> float:
    """Low end of the interval, by which winners are ordered."""
    return 0.0 if interval is None or interval.low is None else interval.low.value


def error_of(budget: Budget) -> str:
    """Mean error in percent, with its standard deviation over seeds.

    >>> error_of(Budget((0.01, 0.02), (1.0, 1.0))), error_of(Budget((0.01,), (1.0,)))
    ('1.50% ± 0.71', '1.00%')
    """
    spread = f" ± {100 * stdev(budget.errors):.2f}" if len(budget.errors) > 1 else ""
    return f"{100 * budget.error:.2f}%{spread}"


def alerts(found: Standings) -> list[str]:
    """What keeps the comparison from being convincing, a sentence each; the gravest first."""
    sentences = []
    if found.plain is None:
        sentences.append("Plain training was not run: no method can be judged.")
    elif len(found.plain.budgets) == 1:
        sentences.append(
            "Plain training was run at one length only, so multipliers are bounds. Run several, such as --epochs 2,4,8."
        )
    if found.others and found.random is None:
        sentences.append("Random subsets were not run: what looks like a gain of selection may be one of fewer steps.")
    fewest = min((len(budget.errors) for one in found.methods for budget in one.budgets), default=5)
    if fewest < 5:
        sentences.append(f"{fewest} seed{'s' if fewest > 1 else ''} only: differences may be chance.")
    for one in found.others:
        for target in found.targets:
            against = one.against_random(target)
            if against is None or against.low is None or verdict([one.plain[target]]) is not Verdict.BETTER:
                continue
            if (judged := verdict([against])) in (Verdict.SAME, Verdict.WORSE):
                how = "better than" if judged is Verdict.WORSE else "as well as"
                sentences.append(f"Random subsets do {how} {one.name}.")
                break
    return sentences
