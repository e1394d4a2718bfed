"""The command line: all commands in one app."""

from __future__ import annotations

import typer

from selective_backprop.lab.cli.advise import advise
from selective_backprop.lab.cli.compare import compare
from selective_backprop.lab.cli.diet import diet_app
from selective_backprop.lab.cli.leaderboard import leaderboard_app
from selective_backprop.lab.cli.report import report, watch
from selective_backprop.lab.cli.show import demo, list_names
from selective_backprop.lab.cli.sweep import sweep
from selective_backprop.lab.cli.train import train
from selective_backprop.lab.runs.ranks import number_of_ranks

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Train neural networks faster by choosing which examples to learn from.",
)
_ON_RANKS = ("train", "compare", "sweep")


@app.callback()
def _refuse_ranks(context: typer.Context) -> None:
    """Refuse to run commands on several ranks that would only do the same work several times."""
    name = context.invoked_subcommand
    if number_of_ranks() > 1 and name not in _ON_RANKS:
        raise typer.BadParameter(
            f"{name} runs in one process: start it without torchrun. Only train, compare and sweep run on several ranks"
        )


app.command()(train)
app.command()(compare)
app.command()(sweep)
app.command()(report)
app.command()(watch)
app.command()(advise)
app.add_typer(diet_app, name="diet")
app.add_typer(leaderboard_app, name="leaderboard")
app.command("list")(list_names)
app.command()(demo)
