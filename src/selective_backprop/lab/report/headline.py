"""Section 1: which method won, by how much, and against which baselines."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Part, Section, Table, Text
from selective_backprop.lab.report.runs import Run, split_label
from selective_backprop.lab.study.curves import AXES, FACTORS, Axis, Curve, SpeedUp
from selective_backprop.lab.study.tables import cost, final_error

READING = (
    "A speed-up is how many times less was spent than by Traditional until the error came within 1.1x, 1.2x or 1.4x of "
    "its final error: of the mean over seeds and, in brackets, the lowest and highest of a seed."
)


def headline(comparisons: Sequence[Comparison]) -> Section:
    """Findings in words, and the tables they are from."""
    parts: list[Part] = []
    for comparison in comparisons:
        parts.append(Text(winner(comparison), comparison.id))
        if comparison.reference is not None:
            parts.append(speed_table(comparison, "compute"))
            parts.append(speed_table(comparison, "seconds"))
        elif comparison.finished:
            parts.append(error_table(comparison))
        if budget := budget_table(comparison):
            parts.append(budget)
    return Section("headline", "Which method won", READING, parts)


def winner(comparison: Comparison) -> str:
    """A finding in words."""
    unfinished = [run for run in comparison.runs if not run.finished]
    going_on = (
        f" {len(unfinished)} of {len(comparison.runs)} runs are not finished and not counted." if unfinished else ""
    )
    if comparison.reference is None:
        return f"No finished run of Traditional to compare with.{going_on}"
    return f"{_leader(comparison)} {_budget_sentence(comparison)}".strip() + going_on


def _leader(comparison: Comparison) -> str:
    reference = comparison.reference
    assert reference is not None
    rivals = [label for label, runs in comparison.finished.items() if label != reference and not runs[0].is_baseline]
    baseline = f"Traditional, which ends at {final_error(_curves(comparison, reference))}"
    for factor in FACTORS:
        found = {label: comparison.speed_up(label, factor, "compute") for label in rivals}
        means = {label: result.median for label, result in found.items() if result and result.median}
        if not means:
            continue
        best = max(means, key=means.__getitem__)
        result = found[best]
        assert result is not None
        if means[best] <= 1:
            return f"**No method beat Traditional**: none came within {factor}x of its final error with less compute."
        seeds = len(comparison.finished[best])
        spread = (
            f"{result.lowest:.2f}-{result.highest:.2f} over {seeds} seeds"
            if seeds > 1 and result.lowest and result.highest
            else f"not by every one of {seeds} seeds"
            if seeds > 1
            else "one seed, so nothing is known of the spread"
        )
        clock = comparison.speed_up(best, factor, "seconds")
        in_time = f", and {clock.median:.2f}x less time" if clock and clock.median else ""
        return (
            f"**{best}** came within {factor}x of the final error of {baseline}, with **{means[best]:.2f}x less "
            f"compute** ({spread}){in_time}. It ends at {final_error(_curves(comparison, best))}."
        )
    return f"**No method came within {FACTORS[-1]}x** of the final error of {baseline}." if rivals else ""


def _budget_sentence(comparison: Comparison) -> str:
    """The method against plain training that was given as much and no more."""
    sentences = []
    for label, runs in comparison.finished.items():
        baseline = comparison.finished.get(f"traditional, {label}'s compute")
        if baseline is None:
            continue
        ours, theirs = ([run.records[-1]["test_error"] for run in group] for group in (runs, baseline))
        sentences.append(
            f"Within the compute of {label}, plain training with its learning rate fully decayed ends at "
            f"{final_error([run.curve for run in baseline])}: **{label} is {_verdict(ours, theirs)}**."
        )
    return " ".join(sentences)


def _verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether the method is better or worse, and whether seeds differ by as much as that.

    >>> _verdict([0.10, 0.11], [0.2, 0.21]), _verdict([0.10, 0.3], [0.2, 0.21]), _verdict([0.2], [0.1])
    ('better', 'better, by less than the spread over seeds', 'worse')
    """
    difference = fmean(theirs) - fmean(ours)
    word = "better" if difference > 0 else "worse" if difference < 0 else "equal"
    spread = max((stdev(errors) for errors in (ours, theirs) if len(errors) > 1), default=0.0)
    return f"{word}, by less than the spread over seeds" if 0 < abs(difference) < spread else word


def _curves(comparison: Comparison, label: str) -> list[Curve]:
    return [run.curve for run in comparison.finished[label]]


def speed_table(comparison: Comparison, axis: Axis) -> Table:
    """Speed-ups of all methods; baselines within a budget have a table of their own."""
    cells = []
    for label, runs in comparison.finished.items():
        if runs[0].is_baseline:
            continue
        ups = [comparison.speed_up(label, factor, axis) for factor in FACTORS]
        curves = [run.curve for run in runs]
        cells.append([label, final_error(curves), cost(curves, axis), *(_words(up, len(runs)) for up in ups)])
    heading = ["method", "final error", _COST[axis], *(f"to {factor}x" for factor in FACTORS)]
    title, note = f"Speed-up in {axis}", _NOTES[axis]
    return Table(f"speed-up-{axis}-{comparison.id}", title, heading, cells, comparison.id, note=note)


def _words(up: SpeedUp | None, seeds: int) -> str:
    """Without a span where there is one seed."""
    if up is None:
        return "no common seed"
    return f"{up.median:.2f}" if seeds == 1 and up.median is not None else str(up)


_NOTES = {
    "compute": "Errors on the test set, mean ± standard deviation over seeds. Compute counts passes, forward 1 and "
    "backward 2, in epochs of Traditional.",
    "seconds": "Seconds of training; evaluation is left out.",
}
_COST = {"seconds": "seconds", "compute": "epochs of compute"}


def error_table(comparison: Comparison) -> Table:
    """Where there is nothing to measure a speed-up against."""
    cells = []
    for label, runs in comparison.finished.items():
        curves = [run.curve for run in runs]
        cells.append([label, final_error(curves), *(cost(curves, axis) for axis in AXES)])
    heading = ["method", "final error", *(_COST[axis] for axis in AXES)]
    return Table(f"errors-{comparison.id}", "Final errors", heading, cells, comparison.id)


def budget_table(comparison: Comparison) -> Table | None:
    """Each method that baselines were given the budget of, with those baselines beside it."""
    owners: dict[str, list[tuple[str, list[Run]]]] = {}
    for label, runs in comparison.finished.items():
        if runs[0].is_baseline:
            owner = split_label(label)[1].rpartition("'s ")[0]
            owner = owner.partition("x ")[2] if owner.partition("x ")[0].replace(".", "").isdigit() else owner
            owners.setdefault(owner, []).append((label, runs))
    cells = []
    for owner, baselines in owners.items():
        rows = [(owner, comparison.finished[owner])] if owner in comparison.finished else []
        for label, runs in [*rows, *baselines]:
            curves = [run.curve for run in runs]
            cells.append([label, final_error(curves), *(cost(curves, axis) for axis in reversed(AXES)), str(len(runs))])
    if not cells:
        return None
    heading = ["method", "final error", *(_COST[axis] for axis in reversed(AXES)), "seeds"]
    note = "Baselines have their learning rate fully decayed within the compute, or the time, that the method took."
    return Table(
        f"budget-{comparison.id}", "Baselines within the same budget", heading, cells, comparison.id, note=note
    )
