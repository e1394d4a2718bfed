"""Build the report: one HTML file that holds everything, and needs no script to be read."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from selective_backprop_lab.data.decoding import import_extra
from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.report import examples, results
from selective_backprop_lab.report.draw import alone, variables
from selective_backprop_lab.report.images import LoadData
from selective_backprop_lab.report.parts import Cell, Figure, Material, Part, Section, Table, as_csv
from selective_backprop_lab.report.runs import Comparison, Run, compare_runs, find_runs, method_and_budget, order_of

SECTIONS: tuple[tuple[str, str, str, Callable[[Comparison, Material], list[Part]]], ...] = (
    ("numbers", "Numbers", results.NUMBERS, results.numbers),
    ("errors", "Error in the course of training", results.CURVES, results.errors),
    ("seconds", "Where the time went", results.TIMES, results.times),
    ("selection", "What was selected", examples.SELECTION, examples.selection),
    ("gradients", "Gradient fidelity", examples.GRADIENTS, examples.gradient_fidelity),
    ("confidence", "Confidence on the test set", examples.CONFIDENCE, examples.confidence),
    ("audit", "Your data", examples.AUDIT, examples.your_data),
    ("data", "The data", examples.DATA, examples.about_data),
)
"""Sections of a workload: id, title, a sentence on how to read it, and what makes its figures and tables."""
LEFT_OUT = "These files are damaged or no files of a run. What would be drawn from them is missing from this page."


@dataclass(frozen=True, eq=False)
class Report:
    """Everything that a page shows. In a notebook, a report is shown as that page."""

    comparisons: list[Comparison]
    methods: dict[str, str]
    """Full names of the methods, by the names that the page shows."""
    sections: list[Section]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What is missing because its file is damaged, and why."""
    written: datetime | None = None
    """Time of writing, if the runs go on: then the open page loads itself again now and then."""

    def html(self) -> str:
        """Return the page."""
        runs = [run for comparison in self.comparisons for run in comparison.runs]
        budgets = list(dict.fromkeys(method_and_budget(run.label)[1] for run in runs))
        methods = {method_and_budget(run.label)[0] for run in runs}
        counted = [(len(runs), "run"), (len(methods), "method"), (len({run.seed for run in runs}), "seed")]
        counted.append((len(self.comparisons), "workload"))
        page: str = _template().render(
            report=self,
            summary=", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted),
            budgets=sorted(filter(None, budgets), key=order_of) if 2 < len(budgets) <= _MOST_BUDGETS else [],
            colors=variables(list(self.methods.values())),
            place_of=self._place,
        )
        return page

    def _place(self, cell: str | Cell) -> tuple[int, str, str] | None:
        """If it is the label of a run: which of the page's colours it has, the method's name, and the budget."""
        name, budget = method_and_budget(cell.text if isinstance(cell, Cell) else cell)
        return (list(self.methods).index(name), name, budget) if name in self.methods else None

    def _repr_html_(self) -> str:
        """Return the page within a frame, so that neither its styles nor its script touch the notebook."""
        # Links to sections would otherwise lead to the notebook's own address.
        page = html.escape(self.html().replace("<head>", '<head>\n<base href="about:srcdoc">', 1))
        style = "width: 100%; height: 50rem; border: 1px solid #8888"
        return f'<iframe title="Report" srcdoc="{page}" style="{style}"></iframe>'

    def export(self, folder: Path) -> list[Path]:
        """Write each figure as SVG and CSV, and each table as CSV, for papers, slides and your own plots."""
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[Path, bytes] = {}
        for part in (part for section in self.sections for part in section.parts):
            if isinstance(part, Figure):
                for number, svg in enumerate(part.pictures.values()):
                    name = part.id if len(part.pictures) == 1 else f"{part.id}-{number}"
                    files[folder / f"{name}.svg"] = alone(svg, list(self.methods.values())).encode()
                files[folder / f"{part.id}.csv"] = part.csv.encode()
            elif isinstance(part, Table):
                files[folder / f"{part.id}.csv"] = as_csv(part.heading, part.cells).encode()
        write_whole(files)
        return sorted(files)


_MOST_BUDGETS = 12  # more would be a legend that nobody reads


@functools.cache  # it takes longer to compile than to render, and a live report is rendered again and again
def _template() -> Any:
    jinja = import_extra("jinja2")
    source = Path(__file__).with_name("page.html").read_text()
    return jinja.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def build_report(
    runs: Sequence[Run], *, load: LoadData | None = None, images: bool | None = None, scores: Sequence[Path] = ()
) -> Report:
    """Build every section that the runs have the data for.

    Args:
        runs: as `find_runs` gives them.
        load, images, scores: see `Material`.
    """
    comparisons = compare_runs(runs)
    methods: dict[str, str] = {}
    for run in sorted((run for one in comparisons for run in one.runs), key=lambda run: order_of(run.label)):
        methods.setdefault(method_and_budget(run.label)[0], "matched_random" if run.is_matched else run.method)
    material = Material(methods, load, images, scores)
    for run in (run for run in runs if run.problem):
        material.leave_out(f"environment of {run.label}, seed {run.seed}", run.problem)
    sections = [
        Section(id, title, reading, [replace(part, id=f"{part.id}-{one.id}") for part in make(one, material)], one.id)
        for one in comparisons
        for id, title, reading, make in SECTIONS
    ]
    top = [results.headline(comparisons), results.frontiers(comparisons, material)]
    end = [results.sensitivity(runs, material), results.machines(runs), results.provenance(comparisons)]
    if material.left_out:  # near the top: a reader must not take what is missing for what is not so
        table = Table("left-out", "Left out", ["what", "why"], material.left_out)
        top.insert(1, Section("left-out", "What was left out", LEFT_OUT, [table], overview=True))
    shown = [section for section in (*top, *sections, *end) if section.parts]
    return Report(comparisons, methods, shown, material.left_out)


def write_report(paths: Sequence[Path], out: Path, **more: Any) -> Report:
    """Make the report of the runs in these folders; more as for `build_report`."""
    runs = find_runs(paths)
    if not runs:
        raise ValueError(f"there is no run with a finished epoch in {', '.join(map(str, paths))}")
    report = build_report(runs, **more)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole({out: report.html().encode()})
    return report
