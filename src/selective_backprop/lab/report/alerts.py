"""What keeps a comparison from being convincing, in a sentence each."""

from __future__ import annotations

from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.runs import Run
from selective_backprop.lab.study.standing import PLAIN, RANDOM, alerts


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
