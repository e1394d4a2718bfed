"""Build the report from runs."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.report import audits, data, errors, headline, probes, seconds, selection
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.comparisons import Comparison, compare_runs, order_of
from selective_backprop_lab.report.figures import Part, Section
from selective_backprop_lab.report.images import LoadData
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.page import render
from selective_backprop_lab.report.provenance import provenance
from selective_backprop_lab.report.runs import Run, find_runs, method_and_budget
from selective_backprop_lab.report.sensitivity import sensitivity

SECTIONS: tuple[tuple[str, str, str, Callable[[Comparison, Material], list[Part]]], ...] = (
    ("numbers", "Numbers", headline.NUMBERS, headline.numbers),
    ("errors", "Error in the course of training", errors.CURVES, errors.errors),
    ("seconds", "Where the time went", seconds.READING, seconds.where_time_went),
    ("selection", "What was selected", selection.READING, selection.selection),
    ("gradients", "Gradient fidelity", probes.GRADIENTS, probes.gradient_fidelity),
    ("confidence", "Confidence on the test set", probes.CONFIDENCE, probes.confidence),
    ("audit", "Your data", audits.READING, audits.your_data),
    ("data", "The data", data.READING, data.about_data),
)
"""Sections of a workload: id, title, a sentence on how to read it, and what makes its figures and tables."""


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that a page shows. In a notebook, a report is shown as that page."""

    comparisons: list[Comparison]
    palette: Palette
    sections: list[Section]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What is missing because its file is damaged, and why."""
    written: datetime | None = None
    """Time of writing, if the runs go on: then the open page loads itself again now and then."""

    def html(self) -> str:
        """Return the page."""
        return render(self.comparisons, self.palette, self.sections, self.written)

    def _repr_html_(self) -> str:
        """Return the page within a frame, so that neither its styles nor its script touch the notebook."""
        # Links to sections would otherwise lead to the notebook's own address.
        page = self.html().replace("<head>", '<head>\n<base href="about:srcdoc">', 1)
        return (
            f'<iframe title="Report" srcdoc="{html.escape(page)}" '
            'style="width: 100%; height: 50rem; border: 1px solid #8888"></iframe>'
        )


def build_report(
    runs: Sequence[Run], *, load: LoadData | None = None, images: bool | None = None, scores: Sequence[Path] = ()
) -> Report:
    """Build every section that the runs have the data for.

    Args:
        runs: as `find_runs` gives them.
        load, images, scores: see `Material`.
    """
    comparisons = compare_runs(runs)
    labels = sorted({run.label for comparison in comparisons for run in comparison.runs}, key=order_of)
    full_names = {run.label: run.method for comparison in comparisons for run in comparison.runs}
    methods: dict[str, str] = {}
    for label in labels:
        methods.setdefault(method_and_budget(label)[0], full_names[label])
    palette = Palette(methods, list(dict.fromkeys(method_and_budget(label)[1] for label in labels)))
    material = Material(palette, load, images, scores)
    for run in (run for run in runs if run.problem):
        material.leave_out(f"environment of {run.label}, seed {run.seed}", run.problem)
    sections = [headline.headline(comparisons), errors.frontiers(comparisons, material)]
    for id, title, reading, make in SECTIONS:
        parts = [
            replace(part, id=f"{part.id}-{comparison.id}", comparison=comparison.id)
            for comparison in comparisons
            for part in make(comparison, material)
        ]
        sections.append(Section(id, title, reading, parts))
    sections += [sensitivity(runs, material), seconds.machines(runs), provenance(comparisons)]
    sections.insert(1, material.section())  # near the top: a reader must not take what is missing for what is not so
    return Report(comparisons, palette, [section for section in sections if section.parts], material.left_out)


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    load: LoadData | None = None,
    images: bool | None = None,
    scores: Sequence[Path] = (),
) -> Report:
    """Make the report of the runs in these folders; more as for `build_report`."""
    runs = find_runs(paths)
    if not runs:
        raise ValueError(f"there is no run with a finished epoch in {', '.join(map(str, paths))}")
    report = build_report(runs, load=load, images=images, scores=scores)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole({out: report.html().encode()})
    return report
