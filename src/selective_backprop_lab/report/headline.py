"""The first screen: who won on which workload, by how much, and whether that is fair."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Cell, Line, Notes, Part, Section, Table
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import Run
from selective_backprop_lab.study.frontier import Frontier
from selective_backprop_lab.study.standing import PLAIN, RANDOM, TARGETS, Standings, alerts, error_of, winner
from selective_backprop_lab.study.tables import arms_table, multiplier_cell, speed_up_table

READING = (
    "The compute multiplier M is how many times more compute is needed for the same error without the method, by plain "
    "training or by random subsets, whichever needs less: above 1 the method is cheaper."
)
LEGEND = {
    "better": "cheaper than plain training and random subsets",
    "same": "not told apart from one of them",
    "worse": "dearer than one of them",
    "not_checked": "not checked",
}


def headline(comparisons: Sequence[Comparison]) -> Section:
    """The matrix, a sentence for each workload, and what keeps them from being convincing."""
    findings = [(comparison.id, comparison.title, finding(comparison)) for comparison in comparisons]
    doubts = [
        (comparison.id, comparison.title, " ".join(sentences))
        for comparison in comparisons
        if (sentences := alerts_of(comparison))
    ]
    parts: list[Part] = [
        multipliers_table(comparisons),
        Notes("findings", "Who won", findings),
        *([Notes("alerts", "Before you believe it", doubts, "alerts")] if doubts else []),
    ]
    return Section("headline", "Which method won", READING, parts, overview=True)


_MATRIX_NOTE = (
    "All methods of a column are compared at the error above it, one of plain training's. Plain training has what it "
    "needs for it; random subsets have their multiplier against plain training. Below a multiplier stands its 95% "
    "interval over seeds; “>” and “<” are bounds. Runs that differ in data, network or recipe are workloads of their "
    "own, and not compared with each other."
)


def finding(comparison: Comparison) -> str:
    """Who won, among all methods, baselines included."""
    if not comparison.arms:
        return "Nothing can be said: no run is finished."
    return winner(comparison.standings)


def multipliers_table(comparisons: Sequence[Comparison]) -> Table:
    """Methods by workloads, each at its stated errors; in seconds too where the hardware was the same."""
    heading: Line = ["method"]
    columns: list[tuple[Standings, str]] = []
    for comparison in comparisons:
        found, timed = comparison.standings, comparison.standings_in_seconds
        at = [(found, target, f"at {error:.2%} error") for target, error in found.targets.items()] or [(found, "", "")]
        if timed is not None and timed.targets:
            at.append((timed, "lossless", f"in seconds, at {timed.targets['lossless']:.2%} error"))
        columns += [(standings, target) for standings, target, _ in at]
        heading += [Cell(comparison.title, words, link=comparison.id) for _, _, words in at]
    names = {one.name for standings, _ in columns for one in standings.methods}
    rows = [
        [Cell(name, _ALSO.get(name, "")), *(_cell(name, standings, target) for standings, target in columns)]
        for name in sorted(names, key=lambda name: (name != PLAIN, name != RANDOM, name.lower()))
    ]
    return Table("multipliers", "Compute multiplier", heading, rows, _MATRIX_NOTE, LEGEND)


_ALSO = {PLAIN: "plain training", RANDOM: "random subsets"}


def _cell(name: str, standings: Standings, target: str) -> Cell:
    standing = next((one for one in standings.methods if one.name == name), None)
    if standing is None:
        return Cell("not run")
    best = min(standing.budgets, key=lambda budget: budget.error)
    hint = f"lowest error {error_of(best)} with {best.cost:.2f} {standings.unit}"
    if not target:
        return Cell("not checked", "plain training was not run", "not_checked", hint)
    error = standings.targets[target]
    if standing.is_plain:
        spent = Frontier(standing.budgets).cost_of(error)[0]
        return Cell(f"{spent:.2f} {standings.unit.split()[0]}", TARGETS[target], "", hint)
    kind = "" if standing.is_random else standing.verdict(target).name.lower()
    value, _, span = multiplier_cell(standing, target, error).partition(" (")
    if not standing.reaches(error):
        span = f"at best {best.error:.2%}"
    elif not standing.is_random and not standing.random:
        span = "random subsets were not run"
    return Cell(value, span.removesuffix(")"), kind, hint)


def alerts_of(comparison: Comparison) -> list[str]:
    """List the doubts about a comparison: first what its numbers show, then what its runs lack."""
    sentences = alerts(comparison.standings) if comparison.arms else []
    idle = [label for label, runs in comparison.finished.items() if not any(map(selected_anything, runs))]
    if idle:
        sentences.append(f"{' and '.join(idle)} never switched on: trained on every candidate, as plain training does.")
    unfinished = [run for run in comparison.runs if not run.finished]
    if unfinished:
        sentences.append(f"{len(unfinished)} of {len(comparison.runs)} runs are not finished and not counted.")
    if not comparison.same_hardware:
        sentences.append("Runs on different hardware, or with other threads: their seconds are not compared.")
    return sentences


def selected_anything(run: Run) -> bool:
    """Whether an epoch left out any candidate; plain training and random subsets are not asked."""
    if run.method in (PLAIN, RANDOM, "diet"):
        return True
    return any(record["trained"] < 0.999 * record["offered"] for record in run.records)


# ---- the tables of a workload

NUMBERS = "An arm is a method with a number of epochs, its learning rate fully decayed at the end."


def numbers(comparison: Comparison, material: Material) -> list[Part]:
    """All arms of a workload, then speed-ups to a target."""
    parts: list[Part] = [all_arms(comparison)] if comparison.arms else []
    if comparison.reference is not None and all(runs.seconds is not None for runs in comparison.arms):
        parts.append(speed_table(comparison, comparison.reference))
    return parts


def all_arms(comparison: Comparison) -> Table:
    """Every arm with its error and costs."""
    table = arms_table(comparison.arms, comparison.standings.targets)
    size = comparison.test_examples
    note = (
        "Errors are means over seeds with their standard deviation. Compute: forward passes 1, backward passes 2, in "
        "epochs of plain training. Lossless: an error within 2% of the best of plain training."
    )
    if not comparison.same_hardware:
        note += " Seconds are left out: the runs were not all made on the same hardware."
    heading = [table.heading[0], "error" if size is None else f"error on {size:,} test examples", *table.heading[2:]]
    return Table("arms", "All arms", heading, table.rows, note)


def speed_table(comparison: Comparison, reference: str) -> Table:
    """How much sooner each method came within a multiple of the final error of Traditional's best run."""
    seeds = {label: [run.seed for run in runs] for label, runs in comparison.finished.items()}
    curves = {
        label: [run.curve for run in runs]
        for label, runs in comparison.finished.items()
        if seeds[label] == seeds[reference]
    }
    table = speed_up_table(curves, reference)
    note = (
        "How many times less time was spent until the error came within 1.1x, 1.2x or 1.4x of its final error, without "
        "evaluation. It flatters a method where that run is longer than it need be; the multiplier does not."
    )
    return Table("speed-up-seconds", f"Speed-up in seconds, against {reference}", table.heading, table.rows, note)
