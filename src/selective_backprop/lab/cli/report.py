"""selective-backprop report, watch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selective_backprop.lab.cli.options import DataDir, told_plainly
from selective_backprop.lab.data.datasets import ImageSet, load_images, split_validation
from selective_backprop.lab.report import Report, Run, build_report, find_runs, write_report
from selective_backprop.lab.report.images import LoadData

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such.")]
Scores = Annotated[
    list[Path] | None, typer.Option(help="File of `diet score`, to compare with what selection used; repeatable.")
]
Images = Annotated[
    bool | None,
    typer.Option("--images/--no-images", help="Show training images, where the data are here. Default: digits alone."),
]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the page.")] = Path("report.html"),
    export: Annotated[
        Path | None, typer.Option(help="Folder for each figure as PNG, SVG and CSV, and each table as CSV.")
    ] = None,
    scores: Scores = None,
    images: Images = None,
    data_dir: DataDir = None,
) -> None:
    """Make one page of what selection did in these runs: curves, speed-ups, where the time went, what was selected.

    The page works offline, in any browser. Sections are drawn where the runs have what they need: galleries and
    likely wrong labels need the data, gradients and confidence the probes (`--probe gradients,confidence,examples`).

    Examples:

    `selective-backprop report runs/compare`

    `selective-backprop report runs/a runs/b -o report.html --export figures`

    `selective-backprop report runs/svhn --data-dir data --images --scores el2n.pt`
    """
    console = Console(soft_wrap=True)
    with told_plainly():
        made = write_report(runs, out, load=data_of(data_dir), images=images, scores=scores or [])
        tell_left_out(made)
        if export is not None:
            from selective_backprop.lab.report.export import export as export_all

            files = export_all(made, export)
            console.print(f"{len(files)} files in {export}", markup=False, highlight=False)
    console.print(f"report: {out}", markup=False, highlight=False)


def tell_left_out(made: Report) -> None:
    """On stderr, a line for each thing that the report is without."""
    for what, reason in made.left_out:
        typer.echo(f"left out of the report: {what} ({reason})", err=True)


def data_of(data_dir: Path | None) -> LoadData:
    """The data of a run, where it is on this machine: a report downloads nothing."""
    loaded: dict[str, ImageSet] = {}

    def load(run: Run) -> ImageSet:
        name, size, validation = run.recipe["dataset"], run.recipe.get("image_size"), run.config.get("validation")
        here = data_dir or os.environ.get("SELECTIVE_BACKPROP_DATA")
        if name != "digits" and not Path(name).is_dir() and not (here and (Path(here) / name).is_dir()):
            raise FileNotFoundError(f"{name} is not on this machine")
        key = repr((name, size, validation))
        if key not in loaded:
            data = load_images(name, data_dir=data_dir, image_size=size)
            loaded[key] = split_validation(data, validation, seed=0) if validation else data
        return loaded[key]

    return load


def watch(
    runs: Runs,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
    scores: Scores = None,
    images: Images = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the report of runs that go on, to a browser on this machine; it updates as epochs end.

    Example:

    `selective-backprop watch runs/compare`
    """
    from selective_backprop.lab.report.page import render
    from selective_backprop.lab.report.serving import Server, waiting

    load = data_of(data_dir)

    def make(state: str) -> str:
        try:
            if not (found := find_runs(runs)):
                return waiting("No run has finished an epoch yet.")
            made = build_report(found, load=load, images=images, scores=scores or [])
            return render(made.comparisons, made.palette, made.sections, version=state)
        except (ValueError, OSError) as error:
            return waiting(str(error))

    with told_plainly():
        for path in runs:
            if not path.is_dir():
                raise NotADirectoryError(f"{path} is no folder of runs")
        server = Server(port, runs, make)
    with server:
        Console(soft_wrap=True).print(f"{server.url} (Ctrl-C ends it)", markup=False, highlight=False)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
