"""The commands selective-backprop report and watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selective_backprop.lab.cli.command import command
from selective_backprop.lab.cli.options import DataDir
from selective_backprop.lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from selective_backprop.lab.report import Report

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain them.")]
Scores = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="File made by `diet score`, to compare with the examples selected; repeatable."),
]
Images = Annotated[
    bool | None,
    typer.Option(
        "--images/--no-images",
        help="Show training images or texts, if the data are on this machine. Default: only for digits and wordnet.",
    ),
]


@command
def report(
    output: OutputOptions,
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the page.")] = Path("report.html"),
    export: Annotated[
        Path | None, typer.Option(help="Folder for each figure as PNG, SVG and CSV, and each table as CSV.")
    ] = None,
    scores: Scores = None,
    images: Images = None,
    data_dir: DataDir = None,
) -> None:
    """Make one page about these runs: curves, speed-ups, where the time went, what was selected.

    The page works offline, in any browser. A section appears if the runs have what it needs. Galleries and likely wrong
    labels need the data. Gradients and confidence need probes: train with `--probe gradients,confidence,examples`.

    Examples:

    `selective-backprop report runs/compare`

    `selective-backprop report runs/a runs/b -o report.html --export figures`

    `selective-backprop report runs/svhn --data-dir data --images --scores el2n.pt`
    """
    from selective_backprop.lab.report import data_of, write_report

    screen = Screen(output)
    made = write_report(runs, out, load=data_of(data_dir), images=images, scores=scores or [])
    if not output.json:
        tell_left_out(made)
    files = []
    if export is not None:
        from selective_backprop.lab.report.export import export as export_all

        files = export_all(made, export)
        screen.say(f"{len(files)} files in {export}")
    screen.say(f"report: {out}")
    left_out = [{"what": what, "reason": reason} for what, reason in made.left_out]
    screen.result({"report": out, "files": files, "left_out": left_out})


def tell_left_out(made: Report) -> None:
    """Print a line on stderr for each thing that the report leaves out."""
    for what, reason in made.left_out:
        warn(f"left out of the report: {what} ({reason})")


@command
def watch(
    runs: Runs,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port to serve on; 0 takes any free one.")
    ] = 0,
    scores: Scores = None,
    images: Images = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the report to a browser on this machine while runs go on; it updates after each epoch.

    It also shows how many epochs are done, the time left and the arms to come. What you opened or hid stays so.

    Example:

    `selective-backprop watch runs/compare`
    """
    from selective_backprop.lab.report import build_report, data_of, find_runs
    from selective_backprop.lab.report.page import render
    from selective_backprop.lab.report.progress import progress_of
    from selective_backprop.lab.report.serving import Server, waiting

    load = data_of(data_dir)

    def make(state: str) -> str:
        try:
            progress = progress_of(runs, found := find_runs(runs))
            if not found:
                planned = [progress.sentence()] if progress.runs else []
                words = ["No run has finished an epoch yet.", *planned, *progress.problems]
                return waiting(" ".join(words).replace("**", ""))
            made = build_report(found, load=load, images=images, scores=scores or [])
            return render(made.comparisons, made.palette, [progress.section(), *made.sections], version=state)
        except (ValueError, OSError) as error:
            return waiting(str(error))

    for path in runs:
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is no folder of runs")
    server = Server(port, runs, make)
    with server:
        Screen().say(f"{server.url} (stop with Ctrl-C)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
