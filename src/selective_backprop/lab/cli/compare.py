"""selective-backprop compare."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selective_backprop.files.writing import write_whole
from selective_backprop.lab.cli.bars import Bars, stopping_says
from selective_backprop.lab.cli.options import (
    LabelNoise,
    RunsFolder,
    Seeds,
    TrainingOptions,
    cached_loader,
    told_plainly,
    with_option_groups,
)
from selective_backprop.lab.cli.report import data_of, tell_left_out
from selective_backprop.lab.report import write_report
from selective_backprop.lab.runs.choices import Choice, make_method, name_choices
from selective_backprop.lab.runs.ranks import is_first
from selective_backprop.lab.runs.recipes import Recipe
from selective_backprop.lab.study.comparison import compare as run_comparison
from selective_backprop.lab.study.comparison import settings_for
from selective_backprop.lab.study.curves import AXES
from selective_backprop.lab.study.tables import READING, comparison_table

Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="NAME[@SELECTIVITY][:OPTION=VALUE,...]; repeatable. Default: the field's main ones."),
]


class BudgetBy(StrEnum):
    """What a baseline may spend as much of."""

    COMPUTE = "compute"
    TIME = "time"


DEFAULT_METHODS = ["traditional", "sb", "stale:every=3", "ledger", "kath18", "random", "infobatch"]


@with_option_groups
def compare(
    options: TrainingOptions,
    method: Methods = None,
    seeds: Seeds = 2,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="A --method whose compute and time Traditional and repeated random get; repeatable."),
    ] = None,
    budget_times: Annotated[
        list[float] | None,
        typer.Option(help="Multiples of that budget, e.g. 2: twice the compute; repeatable. Default: 1."),
    ] = None,
    budget_by: Annotated[
        list[BudgetBy] | None, typer.Option(help="The same compute, the same time; repeatable. Default: both.")
    ] = None,
    label_noise: LabelNoise = 0.0,
    out: RunsFolder = Path("runs/compare"),
) -> None:
    """Train several methods with several seeds, in turns, and print who reaches which error how soon.

    Options of a method that the recipe has (lr, epochs, ...) change the recipe for that method alone. Run the same
    command again to go on after a stop: only what is missing is done. On several ranks as `train`.

    Examples:

    `selective-backprop compare --seeds 3`

    `selective-backprop compare --method traditional --method sb@0.25 --method ledger --budget ledger`

    `selective-backprop compare --recipe svhn_small --data-dir data --out runs/svhn`
    """
    console = Console()
    with told_plainly():
        chosen = options.chosen()
        choices = parse_methods(method or DEFAULT_METHODS, chosen)
        traditional = next((choice.label for choice in choices if choice.method == "traditional"), None)
        if traditional is None:
            raise ValueError("a comparison needs the method traditional, which all others are measured against")
        for label in budget or []:
            if label not in [choice.label for choice in choices]:
                names = ", ".join(choice.label for choice in choices)
                raise ValueError(f"--budget is one of the methods ({names}), got {label!r}")
        if any(times <= 0 for times in budget_times or []):
            raise ValueError(f"--budget-times must be positive, got {budget_times}")
        observers = options.observers()
        with Bars(console, seeds) as bars, stopping_says(console, f"run the same command to go on: {out}"):
            curves = run_comparison(
                choices,
                chosen,
                cached_loader(options.data_dir),
                out,
                seeds=seeds,
                budgets=budget or [],
                budget_times=budget_times or [1.0],
                budget_by=budget_by or list(BudgetBy),
                label_noise=label_noise,
                validation=options.validation,
                observers=observers,
                show=bars.show,
            )
        tables = {f"Speed-up in {axis}": comparison_table(curves, traditional, axis) for axis in AXES}
        reading = READING.format(split="validation split" if options.validation else "test set", seeds=seeds)
        text = "\n\n".join(f"## {title}\n\n{table.markdown()}" for title, table in tables.items())
        if is_first():
            write_whole({out / "tables.md": f"{text}\n\n{reading}\n".encode()})
    for title, table in tables.items():
        console.print(table.rich(f"{title}: {chosen.dataset}, {chosen.model}, {chosen.epochs} epochs"))
    console.print(reading)
    console.print(f"runs and tables: {out}")
    if not is_first():
        return
    with told_plainly():  # last, so that nothing that goes wrong with it can hide the tables
        tell_left_out(write_report([out], out / "report.html", load=data_of(options.data_dir)))
    console.print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def parse_methods(texts: list[str], recipe: Recipe) -> list[Choice]:
    """All of them are tried out at once: a wrong one must not come up after hours."""
    choices = name_choices(texts)
    for choice in choices:
        settings = settings_for(choice, recipe)
        make_method(settings.method, settings.selectivity, settings.options)
    return choices
