"""The command selective-backprop sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.compare import Methods
from selective_backprop_lab.cli.options import RunsFolder, Seeds, TrainingOptions, cached_loader, checked_methods
from selective_backprop_lab.cli.report import finish_report
from selective_backprop_lab.cli.screen import OutputOptions, Screen

DEFAULT_METHODS = ["traditional", "sb", "stale", "ledger"]


@command
def sweep(
    options: TrainingOptions,
    output: OutputOptions,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUES",
            help="A setting and its values, as NAME=VALUE,VALUE,...; repeatable. NAME is selectivity, every, "
            "label_noise, model, schedule, epochs, lr or another option of the methods.",
        ),
    ],
    method: Methods = None,
    seeds: Seeds = 1,
    out: RunsFolder = Path("runs/sweep"),
) -> None:
    """Train methods at every combination of settings, and print their errors.

    The report shows which settings no other beats. A setting that a method does not have is not varied
    for it. After a stop, run the same command again: it continues.

    Examples:

    `selective-backprop sweep --vary selectivity=0.2,0.33,0.5 --method traditional --method sb --method stale`

    `selective-backprop sweep --vary every=1,2,3,5 --vary label_noise=0,0.1,0.2 --method stale`

    `selective-backprop sweep --recipe svhn_small --vary model=small_resnet,resnet20 --vary schedule=linear,svhn`
    """
    from selective_backprop_lab.cli.bars import train_with_bars
    from selective_backprop_lab.files.writing import write_whole
    from selective_backprop_lab.study.sweeping import grid, sweep_entries
    from selective_backprop_lab.study.tables import arms_table

    screen, chosen = Screen(output), options.chosen()
    specs = checked_methods(method or DEFAULT_METHODS, chosen)
    combinations = grid(vary)
    by_seed = [
        sweep_entries(specs, chosen, combinations, seed=seed, **options.more_settings()) for seed in range(seeds)
    ]
    arms, live = train_with_bars(screen, options, by_seed, cached_loader(options.data_dir), out)
    table = arms_table(arms, {})
    write_whole({out / "tables.md": f"## Final errors\n\n{table.markdown()}\n".encode()})
    screen.table("Final errors", table.heading, table.rows)
    screen.say(f"runs and tables: {out}")
    screen.result(
        {"dataset": chosen.dataset, "model": chosen.model, "epochs": chosen.epochs, "seeds": seeds}
        | {"arms": arms, "out": out, "tables": out / "tables.md", "report": live.file}
    )
    finish_report(live, screen)  # last, so that an error in the report cannot hide the tables
