"""The command selective-backprop train."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop_lab.cli.command import command, stopping_says
from selective_backprop_lab.cli.options import LabelNoise, TrainingOptions, cached_loader, checked_methods
from selective_backprop_lab.cli.report import finish_report
from selective_backprop_lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop_lab.runs.training import Record, Settings


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
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
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
    from selective_backprop_lab.runs.records import read_records
    from selective_backprop_lab.runs.time_left import TimeLeft
    from selective_backprop_lab.study.comparison import settings_for

    screen, chosen = Screen(output), options.chosen()
    (spec,) = checked_methods([method or chosen.method], chosen)
    settings = settings_for(spec, chosen, seed=seed, label_noise=label_noise, **options.more_settings())
    if resume and out is None:
        raise ValueError("--resume needs --out, the folder of the run to continue")
    if out is not None and not resume and (out / "records.jsonl").exists():
        raise ValueError(f"{out} already holds a run: add --resume to continue it, or choose another folder")
    observers, load = options.observers(), cached_loader(options.data_dir)
    options.require_folder(out)
    entry = Entry(settings.method, settings, is_alone=True)
    left = TimeLeft([entry])
    live = LiveReport(out, left, data_of(options.data_dir)) if out is not None else None
    how = f"to continue, add --resume to the command: {out}" if out is not None else "nothing was saved: no --out"
    if out is None or not resume:
        screen.note(f"training {settings.recipe.model} on {settings.recipe.dataset} with {settings.method}")
    else:
        with suppress(ValueError):  # damaged records are written again from the checkpoint
            screen.note(_where_it_goes_on(len(read_records(out)), settings.epochs))
    with Bars(screen, left) as bars, stopping_says(how):
        show = live.after(bars.show) if live is not None else bars.show
        records = run_in_turns([entry], load, out, observers=observers, show=show)[entry]
    screen.say(_summary(settings, records))
    screen.result(
        _totals(settings, records) | {"out": out, "report": live.file if live is not None else None, "records": records}
    )
    if live is not None:
        finish_report(live, screen)


def _where_it_goes_on(done: int, epochs: int) -> str:
    if done == epochs:
        return f"all {epochs} epochs of this run were done before: nothing is left to train"
    if done == 0:
        return f"this run has no finished epoch yet: it begins with epoch 1 of {epochs}"
    return f"{done} of {epochs} epochs were done before: the run goes on with epoch {done + 1}"


def _totals(settings: Settings, records: list[Record]) -> dict[str, Any]:
    from selective_backprop_lab.runs.methods import has_selectivity
    from selective_backprop_lab.study.curves import Curve

    curve, recipe = Curve.of(records), settings.recipe
    return {
        "method": settings.method,
        **({"selectivity": settings.selectivity} if has_selectivity(settings.method) else {}),
        "options": settings.options,
        "dataset": recipe.dataset,
        "model": recipe.model,
        "epochs": settings.epochs,
        "seed": settings.seed,
        "test_error": curve.errors[-1],
        "seconds": curve.seconds[-1],
        "compute": curve.compute[-1],
        **{name: sum(record[name] for record in records) for name in ("offered", "scored", "trained")},
    }


def _summary(settings: Settings, records: list[Record]) -> str:
    found = _totals(settings, records)
    return (
        f"{found['method']} on {found['dataset']}: test error {found['test_error']:.2%} after "
        f"{found['seconds']:.1f} s, {found['scored']:,} selection passes, {found['trained']:,} examples trained on"
    )
