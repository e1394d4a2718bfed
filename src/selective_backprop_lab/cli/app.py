"""The command line: all commands in one app.

Nothing here imports torch before a command runs, so that --help, --version and TAB answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

import selective_backprop as sb
from selective_backprop_lab.cli.advise import advise
from selective_backprop_lab.cli.audit import audit
from selective_backprop_lab.cli.command import make_app
from selective_backprop_lab.cli.compare import compare
from selective_backprop_lab.cli.demo import demo
from selective_backprop_lab.cli.diet import diet_app
from selective_backprop_lab.cli.leaderboard import leaderboard_app
from selective_backprop_lab.cli.listing import list_names
from selective_backprop_lab.cli.report import report
from selective_backprop_lab.cli.sweep import sweep
from selective_backprop_lab.cli.train import train

app = make_app(
    "Train neural networks faster by choosing which examples to learn from.",
    train=train,
    compare=compare,
    sweep=sweep,
    report=report,
    advise=advise,
    audit=audit,
    list=list_names,
    demo=demo,
)
app.add_typer(diet_app, name="diet")
app.add_typer(leaderboard_app, name="leaderboard")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"selective-backprop {sb.__version__}")
        raise typer.Exit


@app.callback()
def _begin(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the program itself."""
