"""One HTML file that holds everything: text, data, charts and the code that draws them."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from selective_backprop_lab.data.decoding import import_extra
from selective_backprop_lab.files.locks import locked_folder
from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.report import theme
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Cell, Figure, Row, Section, rounded
from selective_backprop_lab.report.runs import method_and_budget

_FOLDER = Path(__file__).parent / "template"
_MOST_BUDGETS = 12  # more would be a legend that nobody reads


def render(
    comparisons: Sequence[Comparison], palette: Palette, sections: Sequence[Section], written: datetime | None
) -> str:
    """Render the page of a report as HTML."""
    page: str = _template().render(
        summary=_summary(comparisons),
        comparisons=comparisons,
        overview=[section for section in sections if section.overview],
        sections=[section for section in sections if not section.overview],
        methods=palette.methods,
        budgets=palette.budgets if 1 < len(palette.budgets) <= _MOST_BUDGETS else [],
        place_of=lambda cell: _place(palette, cell),
        themes=theme,
        full_names=palette.full_names,
        data=_data(comparisons, sections, palette),
        style=_read("page.css"),
        script=_read("page.js"),
        bundle=javascript(),
        licences=_read("vega-licences.txt"),
        written=written,
    )
    return page


@functools.cache  # it takes longer to compile than to render, and a live report is rendered again and again
def _template() -> Any:
    jinja = import_extra("jinja2")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text()


def _summary(comparisons: Sequence[Comparison]) -> str:
    runs = [run for comparison in comparisons for run in comparison.runs]
    methods, seeds = {method_and_budget(run.label)[0] for run in runs}, {run.seed for run in runs}
    counted = [(len(runs), "run"), (len(methods), "method"), (len(seeds), "seed"), (len(comparisons), "workload")]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted)


def _place(palette: Palette, cell: str | Cell) -> tuple[int, str, str] | None:
    """If it is the label of a run: which of the page's colours it has, the method's name, and the budget."""
    name, budget = method_and_budget(cell.text if isinstance(cell, Cell) else cell)
    return (palette.methods.index(name), name, budget) if name in palette.methods else None


def _data(comparisons: Sequence[Comparison], sections: Sequence[Section], palette: Palette) -> dict[str, Any]:
    """Specs and rows for the page's script; lists of rows that figures share are in it once."""
    titles = {comparison.id: comparison.title for comparison in comparisons}
    found = [(part, section) for section in sections for part in section.parts if isinstance(part, Figure)]
    tables: dict[int, dict[str, Any]] = {}
    for figure, _ in found:
        tables.setdefault(id(figure.rows), _compact(figure.rows))
    places = {key: number for number, key in enumerate(tables)}
    return {
        "tables": list(tables.values()),
        "figures": {
            figure.id: {
                "spec": figure.spec,
                "table": places[id(figure.rows)],
                "title": figure.title,
                "subtitle": titles.get(figure.comparison, section.title),
            }
            for figure, section in found
        },
        "themes": {name: theme.config(name, palette.full_names) for name in theme.THEMES},
    }


def _compact(rows: Sequence[Row]) -> dict[str, Any]:
    """Store rows by column, with words as numbers: a fifth of the size of a list of objects."""
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [rounded(row[name]) for row in rows]
        if all(isinstance(value, str) for value in values):
            words = {word: number for number, word in enumerate(dict.fromkeys(values))}
            columns[name] = {"words": list(words), "numbers": [words[value] for value in values]}
        else:
            columns[name] = values
    return columns


# ---- the JavaScript that draws the charts

_PATIENCE = 600.0  # seconds, on a machine with much else to do


def javascript(cache_dir: Path | None = None) -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, from vl-convert. The first call takes some 20 seconds.

    Args:
        cache_dir: default: selective_backprop in $XDG_CACHE_HOME or ~/.cache.
    """
    converter = import_extra("vl_convert")
    version = importlib.metadata.version("vl-convert-python")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = (cache_dir or caches / "selective_backprop") / f"vega-{version}.js"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # A second process waits for the first one, and then finds the file.
        with locked_folder(file.parent, patience=_PATIENCE, name=file.with_suffix(".lock").name):
            if not file.exists():
                code: str = converter.javascript_bundle()
                # Nothing in a script may look like its end.
                write_whole({file: code.replace("</script", "<\\/script").encode()})
    return file.read_text()
