"""selective-backprop train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from selective_backprop.lab.choices import full_name, make_method, parse_option
from selective_backprop.lab.cli.options import (
    DataDir,
    DataSet,
    Epochs,
    LabelNoise,
    Model,
    RecipeName,
    Selectivity,
    Validation,
    chosen_recipe,
    told_plainly,
)
from selective_backprop.lab.datasets import ImageSet
from selective_backprop.lab.records import RunFolder
from selective_backprop.lab.training import Observer, Record, Settings, Training, load_data
from selective_backprop.lab.training import train as train_run


def train(
    recipe: RecipeName = "digits",
    dataset: DataSet = None,
    model: Model = None,
    method: Annotated[str | None, typer.Option(help="Method of selection; see `list`.")] = None,
    selectivity: Selectivity = None,
    option: Annotated[list[str] | None, typer.Option(help="More for the method, as name=value; repeatable.")] = None,
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and selection.")] = 0,
    label_noise: LabelNoise = 0.0,
    validation: Validation = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for config, records and checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train one model with one method.

    Examples:

    `selective-backprop train`

    `selective-backprop train --method ledger --option loss_share=0.8 --epochs 10 --out runs/a`

    `selective-backprop train --recipe svhn --model resnet20 --epochs 20 --data-dir data --out runs/b`
    """
    with told_plainly():
        chosen = chosen_recipe(recipe, dataset=dataset, model=model, epochs=epochs)
        settings = Settings(
            recipe=chosen,
            method=full_name(method or chosen.method),
            selectivity=chosen.selectivity if selectivity is None else selectivity,
            options=dict(parse_option(text) for text in option or []),
            seed=seed,
            label_noise=label_noise,
            validation=validation,
        )
        if resume and out is None:
            raise ValueError("--resume needs --out, the folder of the run to go on with")
        if out is not None and not resume and (out / "records.jsonl").exists():
            raise ValueError(f"{out} holds a run already: add --resume to go on with it, or choose another folder")
        make_method(settings.method, settings.selectivity, settings.options)  # a wrong name is told at once
        data = load_data(settings, data_dir)
        folder = RunFolder(out, settings.as_json()) if out is not None else None
        _train_with_bar(settings, data, folder, [])


def _train_with_bar(settings: Settings, data: ImageSet, folder: RunFolder | None, observers: list[Observer]) -> None:
    console = Console()
    columns = (TextColumn(settings.method), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=settings.epochs, state="")

        def show(training: Training, record: Record) -> None:
            state = describe(record, settings.epochs)
            progress.update(bar, completed=record["epoch"] + 1, state=state)
            if not console.is_terminal:
                print(state, flush=True)

        try:
            records = train_run(settings, data, folder=folder, observers=[*observers, show])
        except KeyboardInterrupt:
            progress.stop()
            saved = (
                f"go on with the same command and --resume: {folder.path}" if folder else "nothing was saved: no --out"
            )
            console.print(f"stopped; {saved}")
            raise typer.Exit(130) from None
        finally:
            if folder is not None:
                folder.close()
    last = records[-1]
    clock = sum(sum(r["seconds"].values()) - r["seconds"]["evaluation"] for r in records)
    scored, trained = (sum(record[name] for record in records) for name in ("scored", "trained"))
    console.print(
        f"{settings.method} on {settings.recipe.dataset}: test error {last['test_error']:.2%} after {clock:.1f} s, "
        f"{scored:,} selection passes, {trained:,} examples trained on"
    )


def describe(record: Record, epochs: int) -> str:
    """An epoch in one line."""
    speed = record["offered"] / sum(record["seconds"].values())
    share = record["trained"] / record["offered"]
    return (
        f"epoch {record['epoch'] + 1}/{epochs}  error {record['test_error']:.2%}  selectivity {share:.2f}  "
        f"{speed:,.0f} examples/s"
    )
