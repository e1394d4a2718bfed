"""Build the report from runs."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.report.audits import your_data
from selective_backprop.lab.report.charts import Palette
from selective_backprop.lab.report.comparisons import Comparison, compare_runs, order_of
from selective_backprop.lab.report.data import about_data
from selective_backprop.lab.report.errors import errors, frontiers
from selective_backprop.lab.report.figures import Section
from selective_backprop.lab.report.headline import headline, numbers
from selective_backprop.lab.report.images import LoadData
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.logs import read_logs
from selective_backprop.lab.report.page import render
from selective_backprop.lab.report.probes import confidence, gradient_fidelity
from selective_backprop.lab.report.provenance import provenance
from selective_backprop.lab.report.runs import Run, find_runs, method_and_budget
from selective_backprop.lab.report.seconds import machines, where_time_went
from selective_backprop.lab.report.selection import selection
from selective_backprop.lab.report.sensitivity import sensitivity


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that a page shows. In a notebook, a report is shown as that page."""

    comparisons: list[Comparison]
    palette: Palette
    sections: list[Section]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What is missing because its file is damaged, and why."""

    def html(self) -> str:
        """Return the page."""
        return render(self.comparisons, self.palette, self.sections)

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
        load, images, scores: for the section on the data, see `about_data`.
    """
    comparisons = compare_runs(runs)
    labels = sorted({run.label for comparison in comparisons for run in comparison.runs}, key=order_of)
    full_names = {run.label: run.method for comparison in comparisons for run in comparison.runs}
    methods: dict[str, str] = {}
    for label in labels:
        methods.setdefault(method_and_budget(label)[0], full_names[label])
    palette = Palette(methods, sorted({method_and_budget(label)[1] for label in labels}))
    left_out = LeftOut()
    for run in (run for run in runs if run.problem):
        left_out.add(f"environment of {run.label}, seed {run.seed}", run.problem)
    logs = {comparison.id: read_logs(comparison, left_out) for comparison in comparisons}
    sections = [
        headline(comparisons),
        frontiers(comparisons, palette),
        numbers(comparisons),
        errors(comparisons, palette),
        where_time_went(comparisons, palette),
        selection(comparisons, logs, palette),
        gradient_fidelity(comparisons, left_out),
        confidence(comparisons, palette, left_out),
        sensitivity(runs, palette),
        machines(runs),
        your_data(comparisons, left_out, load=load, images=images),
        about_data(comparisons, logs, left_out, load=load, images=images, scores=scores),
        provenance(comparisons),
    ]
    sections.insert(1, left_out.section())  # near the top: a reader must not take what is missing for what is not so
    return Report(comparisons, palette, [section for section in sections if section.parts], left_out.notes)


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
