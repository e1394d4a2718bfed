"""The command selective-backprop train."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selective_backprop.lab.cli.bars import Bars, stopping_says
from selective_backprop.lab.cli.options import (
    LabelNoise,
    TrainingOptions,
    told_plainly,
    with_option_groups,
)
from selective_backprop.lab.runs.choices import Choice, full_name, make_method, parse_option, with_selectivity
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.runs.ranked_folder import open_folder
from selective_backprop.lab.runs.ranks import from_first
from selective_backprop.lab.runs.training import Record, Settings, check, load_data
from selective_backprop.lab.runs.training import train as train_run
from selective_backprop.lab.study.comparison import settings_for
from selective_backprop.lab.study.curves import Curve


@with_option_groups
def train(
    options: TrainingOptions,
    method: Annotated[
        str | None, typer.Option(help="Method of selection, by name; see `list`. Default: the recipe's.")
    ] = None,
    selectivity: Annotated[float | None, typer.Option(help="Fraction of candidates to train on, in (0, 1].")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the method, as name=value; repeatable. For scoring= see `advise --help`."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights, order, augmentation and selection.")] = 0,
    label_noise: LabelNoise = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for settings, records and checkpoints. Without it nothing is saved.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Train one model with one method.

    To train on several ranks, start it with `torchrun`. The recipe's batch is divided equally among the ranks, so a
    recipe means the same on any number of them. Counts are sums over ranks, and seconds are those of rank 0.

    Examples:

    `selective-backprop train`

    `selective-backprop train --method ledger --option loss_share=0.8 --epochs 10 --out runs/a`

    `selective-backprop train --recipe svhn --model resnet20 --epochs 20 --data-dir data --out runs/b`

    `torchrun --nproc-per-node 2 -m selective_backprop.lab train --out runs/c`
    """
    with told_plainly():
        chosen = options.chosen()
        name, of_method = full_name(method or chosen.method), dict(parse_option(text) for text in option or [])
        choice = Choice(name, *with_selectivity(name, selectivity, of_method))
        settings = settings_for(choice, chosen, seed=seed, label_noise=label_noise, validation=options.validation)
        if resume and out is None:
            raise ValueError("--resume needs --out, the folder of the run to continue")
        if out is not None and not resume and from_first((out / "records.jsonl").exists):
            raise ValueError(f"{out} already holds a run: add --resume to continue it, or choose another folder")
        make_method(settings.method, settings.selectivity, settings.options)  # a wrong name fails at once
        observers_of = options.observers()
        if out is None and (options.probe is not None or options.tensorboard):
            raise ValueError("--probe and --tensorboard need --out, the folder to write to")
        data = load_data(settings, options.data_dir)
        check(settings, data)
        console, entry = Console(), Entry(name, settings)
        how = f"to continue, add --resume to the command: {out}" if out is not None else "nothing was saved: no --out"
        with ExitStack() as stack:
            folder = open_folder(out, settings.as_json(), data.fingerprint) if out is not None else None
            if folder is not None:
                stack.callback(folder.close)
            bars = stack.enter_context(Bars(console))
            stack.enter_context(stopping_says(console, how))
            observers = observers_of(out, settings) if out is not None else ()
            records = train_run(
                settings,
                data,
                folder=folder,
                observers=[*observers, lambda training, record: bars.show(entry, record)],
            )
        console.print(_summary(settings, records), markup=False)


def _summary(settings: Settings, records: list[Record]) -> str:
    curve = Curve.of(records)
    scored, trained = (sum(record[name] for record in records) for name in ("scored", "trained"))
    return (
        f"{settings.method} on {settings.recipe.dataset}: test error {curve.errors[-1]:.2%} after "
        f"{curve.seconds[-1]:.1f} s, {scored:,} selection passes, {trained:,} examples trained on"
    )
