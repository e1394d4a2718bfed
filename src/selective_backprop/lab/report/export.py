"""Export each figure as PNG, SVG and CSV, and each table as CSV, for papers, slides and your own plots."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.data.decoding import import_extra
from selective_backprop.lab.report import theme
from selective_backprop.lab.report.build import Report
from selective_backprop.lab.report.charts import Palette
from selective_backprop.lab.report.figures import Figure, Matrix, Row, Spec, Table, as_csv, columns_of, rounded


def export(report: Report, folder: Path) -> list[Path]:
    """Write all figures and tables to a folder, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {comparison.id: comparison.title for comparison in report.comparisons}
    files: dict[Path, bytes] = {}
    parts = [(section, part) for section in report.sections for part in section.parts]
    for section, part in parts:
        if isinstance(part, Figure):
            made = _figure(part, titles.get(part.comparison, section.title), report.palette)
            files |= {folder / name: content for name, content in made.items()}
        elif isinstance(part, Table):
            files[folder / f"{part.id}.csv"] = as_csv(*(part.exported or (part.heading, part.cells))).encode()
        elif isinstance(part, Matrix):
            files[folder / f"{part.id}.csv"] = as_csv(*part.exported).encode()
    write_whole(files)
    return sorted(files)


def _figure(figure: Figure, subtitle: str, palette: Palette) -> dict[str, bytes]:
    converter, spec = import_extra("vl_convert"), standalone(figure, palette, subtitle)
    columns = columns_of(figure.rows)
    cells = [[rounded(row.get(name)) for name in columns] for row in figure.rows]
    return {
        f"{figure.id}.png": _smaller(converter.vegalite_to_png(spec, scale=2)),
        f"{figure.id}.svg": converter.vegalite_to_svg(spec).encode(),
        f"{figure.id}.csv": as_csv(columns, cells).encode(),
    }


def _smaller(png: bytes) -> bytes:
    """Reduce a PNG to 256 colours, which are enough for a chart, and so to a quarter of the bytes."""
    image = import_extra("PIL.Image").open(io.BytesIO(png)).convert("RGB").quantize(256)
    image.save(buffer := io.BytesIO(), format="PNG", optimize=True)
    return buffer.getvalue()


def standalone(figure: Figure, palette: Palette, subtitle: str = "") -> Spec:
    """The chart with its data, title and legend: in the page, the last two are outside of it."""
    rows = [{name: rounded(value) for name, value in row.items()} for row in figure.rows]
    title = {"text": figure.title, "subtitle": subtitle, "offset": 14}
    look = {"width": 480, "height": 260, "title": title, "background": theme.PAPER["light"], "padding": 12}
    spec: Spec = look | _with_legends(figure.spec, rows)
    return spec | {
        "data": {"name": "rows", "values": rows},
        "config": theme.config("light", palette.full_names) | {"background": "white"},
    }


def _with_legends(spec: Any, rows: Sequence[Row]) -> Any:
    if isinstance(spec, list):
        return [_with_legends(part, rows) for part in spec]
    if not isinstance(spec, dict):
        return spec
    if spec.get("field") in ("method", "budget") and "legend" in spec and spec["legend"] is None:
        present = {row.get(spec["field"]) for row in rows}
        names = [name for name in spec["scale"]["domain"] if name in present and name]
        # Without a title, legends of colour and shape are one.
        symbol = {"symbolType": "stroke", "symbolSize": 500} if spec["field"] == "budget" else {"symbolOpacity": 1}
        return spec | {"legend": {"orient": "right", "values": names} | symbol if names else None}
    return {key: _with_legends(value, rows) for key, value in spec.items()}
