"""The first screen: who won on which workload, by how much, and whether that is fair."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.comparisons import Comparison, apart
from selective_backprop.lab.report.figures import Cell, Matrix, Notes, Part, Section, Table
from selective_backprop.lab.report.runs import Run, split_label
from selective_backprop.lab.study.curves import FACTORS, Axis
from selective_backprop.lab.study.frontier import Bound, Verdict, says_anything
from selective_backprop.lab.study.standing import PLAIN, RANDOM, Standing, alerts, cheapest_lossless, error_of, winner
from selective_backprop.lab.study.tables import cost, final_error, standing_table

READING = (
    "The compute multiplier is how many times more compute plain training needs for a method's error, its learning "
    "rate decayed within that compute: above 1 the method is cheaper."
)
_KINDS = {Verdict.BETTER: "better", Verdict.SAME: "same", Verdict.WORSE: "worse", Verdict.NOT_CHECKED: "unknown"}
LEGEND = {
    "better": "better than plain training and random subsets",
    "same": "not told apart from one of them",
    "worse": "worse than one of them",
    "unknown": "not checked",
}


def headline(comparisons: Sequence[Comparison]) -> Section:
    """The matrix, a sentence for each workload, and what keeps them from being convincing."""
    titles = {comparison.id: comparison.title for comparison in comparisons}
    findings = [(comparison.id, comparison.title, finding(comparison)) for comparison in comparisons]
    doubts = [("", "", sentence) for sentence in apart(comparisons)]
    for comparison in comparisons:
        sentences = alerts_of(comparison)
        doubts += [(comparison.id, comparison.title, " ".join(sentences))] if sentences else []
    if unknown := sum(run.data_hash is None for comparison in comparisons for run in comparison.runs):
        doubts.append(("", "", f"{unknown} runs do not say which data they used."))
    rows, also = matrix_rows(comparisons), _also(comparisons)
    parts: list[Part] = [
        Matrix("multipliers", "Compute multiplier", titles, rows, LEGEND, also, _MATRIX_NOTE),
        Notes("findings", "Who won", findings),
        *([Notes("alerts", "Before you believe it", doubts, "alerts")] if doubts else []),
    ]
    return Section("headline", "Which method won", READING, parts, overview=True)


_MATRIX_NOTE = (
    "Each method's best arm, with a 95% interval over seeds; “>” and “<” are bounds. Plain training has its lowest "
    "error instead. A number in a dashed cell: random subsets were not run with as much compute."
)


def _also(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """What the baselines are, by the names that they go by."""
    words = {PLAIN: "plain training", RANDOM: "random subsets"}
    runs = [run for comparison in comparisons for run in comparison.runs if run.method in words]
    return {split_label(run.label)[0]: words[run.method] for run in runs}


def finding(comparison: Comparison) -> str:
    """Who won, among all arms, baselines included."""
    if not comparison.standings:
        return "Nothing can be said: no run is finished."
    return f"{winner(comparison.standings)} {cheapest_lossless(comparison.standings)}".strip()


def matrix_rows(comparisons: Sequence[Comparison]) -> dict[str, list[Cell]]:
    """By method: a cell for each workload. Plain training comes first, then random subsets."""
    arms: dict[str, dict[str, list[Standing]]] = {}
    for comparison in comparisons:
        for standing in comparison.standings:
            family = split_label(standing.label)[0]
            arms.setdefault(family, {}).setdefault(comparison.id, []).append(standing)
    first = {family: next(iter(found.values()))[0].runs.method for family, found in arms.items()}
    order = sorted(arms, key=lambda family: (first[family] != PLAIN, first[family] != RANDOM, family.lower()))
    return {family: [_cell(arms[family].get(comparison.id, [])) for comparison in comparisons] for family in order}


def _cell(arms: Sequence[Standing]) -> Cell:
    if not arms:
        return Cell("not run")
    if arms[0].is_plain:
        best = min(arms, key=lambda standing: standing.runs.compute.error)
        budgets = f"{len(arms)} budgets" if len(arms) > 1 else "one budget"
        return Cell(error_of(best.runs.compute), f"{best.runs.compute.cost:.1f} epochs; {budgets}", "", best.label)
    best = best_arm(arms)
    found, compute = best.plain, best.runs.compute.cost
    hint = f"{best.label}: {error_of(best.runs.compute)} with {compute:.2f} epochs of compute"
    if found is None:
        return Cell("not checked", "plain training was not run", "unknown", hint)
    if not says_anything(found):
        why = "so little" if found.multiple.bound is Bound.LESS else "so much"
        return Cell("not checked", f"plain: never {why} compute", "unknown", hint)
    value, _, span = found.short().partition(" (")
    return Cell(value, span.removesuffix(")"), _KINDS[best.verdict], f"{hint}; {best.verdict}")


def best_arm(arms: Sequence[Standing]) -> Standing:
    """The arm with the highest multiplier. A bound that tells nothing counts least."""

    def rank(standing: Standing) -> tuple[bool, float]:
        found = standing.plain
        return (found is not None and says_anything(found), found.multiple.value if found is not None else 0.0)

    return max(arms, key=rank)


def alerts_of(comparison: Comparison) -> list[str]:
    """List the doubts about a comparison: first what its numbers show, then what its runs lack."""
    sentences = alerts(comparison.standings) if comparison.standings else []
    idle = [label for label, runs in comparison.by_label.items() if not any(map(selected_anything, runs))]
    if idle:
        sentences.append(f"{' and '.join(idle)} never switched on: trained on every candidate, as plain training does.")
    free = [label for label in comparison.finished if label not in {s.label for s in comparison.standings}]
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
        if comparison.standings:
            parts.append(arms_table(comparison))
        if comparison.reference is not None:
            parts.append(speed_table(comparison, "compute"))
            if comparison.same_hardware:
                parts.append(speed_table(comparison, "seconds"))
    return Section("numbers", "All arms", _NUMBERS, list(parts))


_NUMBERS = (
    "An arm is a method with a number of epochs, its learning rate fully decayed at the end; M is its multiplier."
)


def arms_table(comparison: Comparison) -> Table:
    """Every arm with its error, its compute and its multipliers."""
    found, size = comparison.standings, comparison.test_examples
    clock = any(standing.runs.seconds is not None for standing in found)
    table = standing_table(found, clock=clock)
    method, error, *rest = table.heading
    heading = [method, error if size is None else f"{error} on {size:,} test examples", *rest, "seeds", "verdict"]
    cells = [
        [*row, str(len(standing.runs.compute.errors)), "baseline" if standing.is_plain else str(standing.verdict)]
        for row, standing in zip(table.rows, found, strict=True)
    ]
    note = (
        "Error: mean ± standard deviation over seeds. Compute: forward passes 1, backward passes 2, in epochs of plain "
        "training. Lossless: an error within 2% of the best of plain training. Better: than both plain training and "
        "random subsets." + ("" if clock else " Seconds are left out: the runs were not all made on the same hardware.")
    )
    return Table(f"arms-{comparison.id}", "All arms", heading, cells, comparison.id, note=note)


def speed_table(comparison: Comparison, axis: Axis) -> Table:
    """How much sooner each method came within a multiple of the final error of Traditional's best run."""
    cells = []
    for label, runs in comparison.finished.items():
        ups = [comparison.speed_up(label, factor, axis) for factor in FACTORS]
        curves = [run.curve for run in runs]
        words = ("no common seed" if up is None else str(up) for up in ups)
        cells.append([label, final_error(curves), cost(curves, axis), *words])
    heading = ["method", "final error", _COST[axis], *(f"to {factor}x" for factor in FACTORS)]
    title = f"Speed-up in {axis}, against {comparison.reference}"
    return Table(f"speed-up-{axis}-{comparison.id}", title, heading, cells, comparison.id, note=_NOTES[axis])


_NOTES = {
    "compute": "How many times less was spent until the error came within 1.1x, 1.2x or 1.4x of its final error. "
    "It flatters a method where that run is longer than it need be; the multiplier does not.",
    "seconds": "Seconds of training; evaluation is left out.",
}
_COST = {"seconds": "seconds", "compute": "epochs of compute"}
