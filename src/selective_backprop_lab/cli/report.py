"""The command selective-backprop report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.options import DataDir
from selective_backprop_lab.cli.screen import OutputOptions, Screen, warn

if TYPE_CHECKING:
    from selective_backprop_lab.report import Report
    from selective_backprop_lab.report.live import LiveReport

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain them.")]
Scores = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="File made by `diet score`, to compare with the examples selected; repeatable."),
]
Images = Annotated[
    bool | None,
    typer.Option(
        "--images/--no-images",
        metavar="",
        help="Show training images or texts, if the data are on this machine. Default: only for digits and wordnet. "
        "With --images, the folder of images that a run names is opened, too, and images are decoded if need be.",
    ),
]


@command
def report(
    output: OutputOptions,
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the page.")] = Path("report.html"),
    export: Annotated[
        Path | None, typer.Option(help="Folder for each figure as SVG and CSV, and each table as CSV.")
    ] = None,
    scores: Scores = None,
    images: Images = None,
    data_dir: DataDir = None,
) -> None:
    """Make one page about these runs: curves, speed-ups, where the time went, what was selected.

    The page works offline, in any browser. A section appears if the runs have what it needs. Galleries need
    the data. Gradients and confidence need probes: train with `--probe gradients,confidence`.

    Examples:

    `selective-backprop report runs/compare`

    `selective-backprop report runs/a runs/b -o report.html --export figures`

    `selective-backprop report runs/svhn --data-dir data --images --scores el2n.pt`
    """
    from selective_backprop_lab.report import data_of, write_report

    screen = Screen(output)
    made = write_report(runs, out, load=data_of(data_dir, paths=bool(images)), images=images, scores=scores or [])
    if not output.json:
        _tell_left_out(made)
    files = []
    if export is not None:
        files = made.export(export)
        screen.say(f"{len(files)} files in {export}")
    screen.say(f"report: {out}")
    left_out = [{"what": what, "reason": reason} for what, reason in made.left_out]
    screen.result({"report": out, "files": files, "left_out": left_out})


def finish_report(live: LiveReport, screen: Screen) -> None:
    """Write the last page about runs that are finished, and say where it is."""
    _tell_left_out(live.finish())
    screen.say(f"report: {live.file}")


def _tell_left_out(made: Report) -> None:
    """Print a line on stderr for each thing that the report leaves out."""
    for what, reason in made.left_out:
        warn(f"left out of the report: {what} ({reason})")
