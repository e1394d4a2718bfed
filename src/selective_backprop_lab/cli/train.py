"""The command selective-backprop train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selective_backprop_lab.cli.command import command, stopping_says
from selective_backprop_lab.cli.options import LabelNoise, TrainingOptions, cached_loader, checked_methods
from selective_backprop_lab.cli.report import finish_report
from selective_backprop_lab.cli.screen import OutputOptions, Screen


@command
def train(
    options: TrainingOptions,
    output: OutputOptions,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method of selection as NAME[@SELECTIVITY][:OPTION=VALUE,...], such as ledger or sb@0.25; see `list`. "
            "Default: the recipe's, which is ledger unless the recipe repeats a published setup."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights, order, augmentation and selection.")] = 0,
    label_noise: LabelNoise = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for settings, records, checkpoints and the report. Without it nothing is saved."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", metavar="", help="Continue the run in --out.")] = False,
) -> None:
    """Train one model with one method.

    Examples:

    `selective-backprop train`

    `selective-backprop train --method ledger:loss_share=0.8 --epochs 10 --out runs/a`

    `selective-backprop train --recipe svhn --model resnet20 --epochs 20 --data-dir data --out runs/b`
    """
    from selective_backprop_lab.cli.bars import Bars
    from selective_backprop_lab.report import data_of
    from selective_backprop_lab.report.live import LiveReport
    from selective_backprop_lab.runs.experiment import Entry, run_in_turns
    from selective_backprop_lab.runs.methods import has_selectivity
    from selective_backprop_lab.runs.records import epochs_done
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.study.comparison import settings_for
    from selective_backprop_lab.study.curves import Curve

    screen, chosen = Screen(output), options.chosen()
    (spec,) = checked_methods([method or chosen.method], chosen)
    settings = settings_for(spec, chosen, seed=seed, label_noise=label_noise, **options.more_settings())
    if resume and out is None:
        raise ValueError("--resume needs --out, the folder of the run to continue")
    if out is not None and not resume and (out / "records.jsonl").exists():
        raise ValueError(f"{out} already holds a run: add --resume to continue it, or choose another folder")
    observers, load = options.observers(), cached_loader(options.data_dir)
    if out is None and (options.probe or options.record):
        raise ValueError("--probe and --record need --out, the folder to write to")
    entry = Entry(settings.method, settings, is_alone=True)
    left = TimeLeft([entry])
    live = LiveReport(out, left, data_of(options.data_dir)) if out is not None else None
    how = f"to continue, add --resume to the command: {out}" if out is not None else "nothing was saved: no --out"
    if out is not None and resume:
        screen.note(f"{epochs_done(out)} of {settings.epochs} epochs were done before")
    else:
        screen.note(f"training {settings.recipe.model} on {settings.recipe.dataset} with {settings.method}")
    with Bars(screen, left) as bars, stopping_says(how):
        show = live.after(bars.show) if live is not None else bars.show
        records = run_in_turns([entry], load, out, observers=observers, show=show)[entry]
    curve, recipe = Curve.of(records), settings.recipe
    sums = {name: sum(record[name] for record in records) for name in ("offered", "scored", "trained")}
    screen.say(
        f"{settings.method} on {recipe.dataset}: test error {curve.errors[-1]:.2%} after {curve.seconds[-1]:.1f} s, "
        f"{sums['scored']:,} selection passes, {sums['trained']:,} examples trained on"
    )
    share = {"selectivity": settings.selectivity} if has_selectivity(settings.method) else {}
    screen.result(
        {"method": settings.method, **share, "options": settings.options, "dataset": recipe.dataset}
        | {"model": recipe.model, "epochs": settings.epochs, "seed": seed, "test_error": curve.errors[-1]}
        | {"seconds": curve.seconds[-1], "compute": curve.compute[-1], **sums, "out": out, "records": records}
        | {"report": live.file if live is not None else None}
    )
    if live is not None:
        finish_report(live, screen)
