"""Export each figure as PNG, SVG and CSV, and each table as CSV, for papers, slides and your own plots."""

from __future__ import annotations

from pathlib import Path

from selective_backprop_lab.data.decoding import import_extra
from selective_backprop_lab.files.writing import write_whole
from selective_backprop_lab.report import theme
from selective_backprop_lab.report.build import Report
from selective_backprop_lab.report.charts import Palette
from selective_backprop_lab.report.figures import Figure, Spec, Table, as_csv, rounded


def export(report: Report, folder: Path) -> list[Path]:
    """Write all figures and tables to a folder, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {comparison.id: comparison.title for comparison in report.comparisons}
    files: dict[Path, bytes] = {}
    for section in report.sections:
        for part in section.parts:
            if isinstance(part, Figure):
                made = _figure(part, titles.get(part.comparison, section.title), report.palette)
                files |= {folder / name: content for name, content in made.items()}
            elif isinstance(part, Table):
                files[folder / f"{part.id}.csv"] = as_csv(part.heading, part.cells).encode()
    write_whole(files)
    return sorted(files)


def _figure(figure: Figure, subtitle: str, palette: Palette) -> dict[str, bytes]:
    converter, spec = import_extra("vl_convert"), standalone(figure, palette, subtitle)
    cells = [[rounded(value) for value in row.values()] for row in figure.rows]
    return {
        f"{figure.id}.png": converter.vegalite_to_png(spec, scale=2),
        f"{figure.id}.svg": converter.vegalite_to_svg(spec).encode(),
        f"{figure.id}.csv": as_csv(list(figure.rows[0]), cells).encode(),
    }


def standalone(figure: Figure, palette: Palette, subtitle: str = "") -> Spec:
    """The chart with its data and title, which in the page is outside of it."""
    rows = [{name: rounded(value) for name, value in row.items()} for row in figure.rows]
    title = {"text": figure.title, "subtitle": subtitle, "offset": 14}
    look = {"width": 480, "height": 260, "title": title, "padding": 12}
    config = theme.config("light", palette.full_names) | {"background": "white"}
    return look | figure.spec | {"data": {"name": "rows", "values": rows}, "config": config}
