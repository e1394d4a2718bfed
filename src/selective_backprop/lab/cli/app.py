"""The command line: all commands in one app.

Nothing here imports torch before a command runs, so that --help, --version and TAB answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

import selective_backprop as sb
from selective_backprop.lab.cli.advise import advise
from selective_backprop.lab.cli.audit import audit
from selective_backprop.lab.cli.compare import compare
from selective_backprop.lab.cli.demo import demo
from selective_backprop.lab.cli.diet import diet_app
from selective_backprop.lab.cli.leaderboard import leaderboard_app
from selective_backprop.lab.cli.listing import list_names
from selective_backprop.lab.cli.report import report
from selective_backprop.lab.cli.sweep import sweep
from selective_backprop.lab.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # a fault of ours shows as Python shows it, without the values of all variables
    help="Train neural networks faster by choosing which examples to learn from.",
)


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


app.command()(train)
app.command()(compare)
app.command()(sweep)
app.command()(report)
app.command()(advise)
app.command()(audit)
app.add_typer(diet_app, name="diet")
app.add_typer(leaderboard_app, name="leaderboard")
app.command("list")(list_names)
app.command()(demo)
