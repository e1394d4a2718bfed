"""The commands selective-backprop list and demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from selective_backprop.lab.cli.options import Seeds
from selective_backprop.lab.data.datasets import NAMES
from selective_backprop.lab.models import MODELS
from selective_backprop.lab.runs.choices import METHODS, SHORT_NAMES
from selective_backprop.lab.runs.recipes import RECIPES
from selective_backprop.lab.study import demo as digits_demo


def list_names() -> None:
    """List the names of data sets, models, recipes and methods.

    Example:

    `selective-backprop list`
    """
    console = Console()
    short = {full: name for name, full in SHORT_NAMES.items()}
    methods = [f"{name} ({short[name]})" if name in short else name for name in METHODS]
    console.print("[bold]data sets[/]", ", ".join(NAMES), "or the path of a folder")
    console.print("[bold]models[/]", ", ".join(MODELS), "or package.module:function")
    console.print("[bold]methods[/]", ", ".join(methods))
    table = Table("recipe", "data set", "model", "epochs", "method", "selectivity", "from")
    for name, recipe in RECIPES.items():
        share = f"{recipe.selectivity:.2f}"
        table.add_row(name, recipe.dataset, recipe.model, str(recipe.epochs), recipe.method, share, recipe.source)
    console.print(table)


def demo(
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to train each method.")] = 12,
    seeds: Seeds = 4,
    report: Annotated[Path, typer.Option(help="File for the report.")] = Path("selective-backprop-demo/report.html"),
) -> None:
    """Compare three methods with plain training and random subsets on scikit-learn's digits: two minutes on two cores.

    It prints how much compute each method saves and which one won, and writes a report.

    Examples:

    `selective-backprop demo`

    `selective-backprop demo --epochs 6 --seeds 2`
    """
    digits_demo.run(epochs, seeds, report)
