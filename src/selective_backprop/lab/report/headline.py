"""The first screen: who won on which workload, by how much, and whether that is fair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selective_backprop.lab.report.comparisons import Comparison, apart
from selective_backprop.lab.report.figures import Cell, Column, Matrix, Notes, Part, Section, Table
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.study.curves import Axis
from selective_backprop.lab.study.frontier import Frontier, Verdict
from selective_backprop.lab.study.standing import PLAIN, RANDOM, TARGETS, Standing, alerts, error_of, standings, winner
from selective_backprop.lab.study.tables import arms_table, method_table, multiplier_cell, speed_up_table

READING = (
    "The compute multiplier M is how many times more compute is needed for the same error without the method, by plain "
    "training or by random subsets, whichever needs less: above 1 the method is cheaper."
)
_KINDS = {Verdict.BETTER: "better", Verdict.SAME: "same", Verdict.WORSE: "worse", Verdict.NOT_CHECKED: "unknown"}
LEGEND = {
    "better": "cheaper than plain training and random subsets",
    "same": "not told apart from one of them",
    "worse": "dearer than one of them",
    "unknown": "not checked",
}


def headline(comparisons: Sequence[Comparison]) -> Section:
    """The matrix, a sentence for each workload, and what keeps them from being convincing."""
    findings = [(comparison.id, comparison.title, finding(comparison)) for comparison in comparisons]
    doubts = [("", "", sentence) for sentence in apart(comparisons)]
    for comparison in comparisons:
        sentences = alerts_of(comparison)
        doubts += [(comparison.id, comparison.title, " ".join(sentences))] if sentences else []
    if unknown := sum(run.data_hash is None for comparison in comparisons for run in comparison.runs):
        doubts.append(("", "", f"{unknown} runs do not say which data they used."))
    parts: list[Part] = [
        Matrix(
            "multipliers",
            "Compute multiplier",
            matrix_columns(comparisons),
            matrix_rows(comparisons),
            LEGEND,
            {PLAIN: "plain training", RANDOM: "random subsets"},
            _MATRIX_NOTE,
        ),
        Notes("findings", "Who won", findings),
        *([Notes("alerts", "Before you believe it", doubts, "alerts")] if doubts else []),
    ]
    return Section("headline", "Which method won", READING, parts, overview=True)


_MATRIX_NOTE = (
    "All methods of a column are compared at the error above it, one of plain training's. Plain training has the "
    "compute that it needs for it; random subsets have their multiplier against plain training. Below a multiplier "
    "stands its 95% interval over seeds; “>” and “<” are bounds."
)


def matrix_columns(comparisons: Sequence[Comparison]) -> list[Column]:
    """A column for every error at which the methods of a workload are compared; one, too, where there is none."""
    columns = []
    for comparison in comparisons:
        targets = comparison.standings.targets or {"": float("nan")}
        columns += [
            Column(comparison.id, comparison.title, f"at {error:.2%} error" if target else "", target)
            for target, error in targets.items()
        ]
    return columns


def finding(comparison: Comparison) -> str:
    """Who won, among all methods, baselines included."""
    if not comparison.arms:
        return "Nothing can be said: no run is finished."
    return winner(comparison.standings)


def matrix_rows(comparisons: Sequence[Comparison]) -> dict[str, list[Cell]]:
    """By method: a cell for each column. Plain training comes first, then random subsets."""
    found = {comparison.id: {one.name: one for one in comparison.standings.methods} for comparison in comparisons}
    targets = {comparison.id: comparison.standings.targets for comparison in comparisons}
    names = dict.fromkeys(name for methods in found.values() for name in methods)
    order = sorted(names, key=lambda name: (name != PLAIN, name != RANDOM, name.lower()))
    columns = matrix_columns(comparisons)
    return {
        name: [
            _cell(found[column.comparison].get(name), column.target, targets[column.comparison]) for column in columns
        ]
        for name in order
    }


def _cell(standing: Standing | None, target: str, targets: Mapping[str, float]) -> Cell:
    if standing is None:
        return Cell("not run")
    best = min(standing.budgets, key=lambda budget: budget.error)
    hint = f"lowest error {error_of(best)} with {best.cost:.2f} epochs of compute"
    if not target:
        return Cell("not checked", "plain training was not run", "unknown", hint)
    error = targets[target]
    if standing.is_plain:
        return Cell(f"{Frontier(standing.budgets).cost_of(error)[0]:.2f} epochs", TARGETS[target], "", hint)
    kind = "" if standing.is_random else _KINDS[standing.verdict(target)]
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
    free = [label for label in comparison.finished if label not in {runs.label for runs in comparison.arms}]
    if free:
        sentences.append(f"Left out, as the records say that it cost nothing: {', '.join(free)}.")
    unfinished = [run for run in comparison.runs if not run.finished]
    if unfinished:
        sentences.append(f"{len(unfinished)} of {len(comparison.runs)} runs are not finished and not counted.")
    if not comparison.same_hardware:
        sentences.append("Runs on different hardware, or with other threads: their seconds are not compared.")
    sizes = sorted({run.test_examples for run in comparison.runs if run.test_examples})
    if len(sizes) > 1:
        sentences.append(f"Test sets differ in size: {', '.join(f'{size:,}' for size in sizes)}.")
    return sentences


def selected_anything(run: Run) -> bool:
    """Whether an epoch left out any candidate; plain training and random subsets are not asked."""
    if run.method in (PLAIN, RANDOM, "diet"):
        return True
    return any(record["trained"] < 0.999 * record["offered"] for record in run.records)


# ---- the tables of a workload


def numbers(comparisons: Sequence[Comparison]) -> Section:
    """All arms of each workload, then speed-ups to a target."""
    parts: list[Table] = []
    for comparison in comparisons:
        if comparison.arms:
            parts += [methods_table(comparison), all_arms(comparison)]
        if comparison.reference is not None:
            parts.append(speed_table(comparison, "compute"))
            if comparison.same_hardware:
                parts.append(speed_table(comparison, "seconds"))
    return Section("numbers", "Numbers", _NUMBERS, list(parts))


_NUMBERS = (
    "An arm is a method with a number of epochs, its learning rate fully decayed at the end; M is the multiplier."
)


def methods_table(comparison: Comparison) -> Table:
    """Every method with its multipliers, in seconds too where the hardware was the same."""
    timed = standings(comparison.arms, seconds=True) if comparison.same_hardware else None
    table = method_table(comparison.standings, timed if timed and timed.methods else None)
    note = (
        "Error (mean ± standard deviation over seeds) and compute (forward passes 1, backward passes 2, in epochs of "
        "plain training) are those of a method's longest runs. M is the lower of the multipliers against plain "
        "training and random subsets."
    )
    return Table(f"methods-{comparison.id}", "Methods", table.heading, table.rows, comparison.id, note=note)


def all_arms(comparison: Comparison) -> Table:
    """Every arm with its error and costs."""
    table = arms_table(comparison.arms, comparison.standings.targets)
    size = comparison.test_examples
    note = "Lossless: an error within 2% of the best of plain training." + (
        "" if "seconds" in table.heading else " Seconds are left out: the runs were not all made on the same hardware."
    )
    heading = [table.heading[0], "error" if size is None else f"error on {size:,} test examples", *table.heading[2:]]
    return Table(f"arms-{comparison.id}", "All arms", heading, table.rows, comparison.id, note=note)


def speed_table(comparison: Comparison, axis: Axis) -> Table:
    """How much sooner each method came within a multiple of the final error of Traditional's best run."""
    assert comparison.reference is not None
    seeds = {label: [run.seed for run in runs] for label, runs in comparison.finished.items()}
    curves = {
        label: [run.curve for run in runs]
        for label, runs in comparison.finished.items()
        if seeds[label] == seeds[comparison.reference]
    }
    table = speed_up_table(curves, comparison.reference, axis)
    title = f"Speed-up in {axis}, against {comparison.reference}"
    return Table(f"speed-up-{axis}-{comparison.id}", title, table.heading, table.rows, comparison.id, note=_NOTES[axis])


_NOTES = {
    "compute": "How many times less was spent until the error came within 1.1x, 1.2x or 1.4x of its final error. "
    "It flatters a method where that run is longer than it need be; the multiplier does not.",
    "seconds": "Seconds of training; evaluation is left out.",
}
