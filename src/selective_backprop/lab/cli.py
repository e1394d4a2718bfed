"""The command line: selective-backprop train, list, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from selective_backprop.lab import demo as digits_demo
from selective_backprop.lab.choices import METHODS, make_method
from selective_backprop.lab.datasets import NAMES, load_images
from selective_backprop.lab.models import MODELS
from selective_backprop.lab.recipes import RECIPES, find_recipe
from selective_backprop.lab.records import RunFolder
from selective_backprop.lab.training import Record, Settings, Training
from selective_backprop.lab.training import train as train_run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Train neural networks faster by choosing which examples to learn from.",
)


@app.command()
def train(
    recipe: Annotated[str, typer.Option(help="Training setup; see `list`.")] = "digits",
    dataset: Annotated[str | None, typer.Option(help="Data set by name or path, instead of the recipe's.")] = None,
    model: Annotated[str | None, typer.Option(help="Model by name or package.module:function.")] = None,
    method: Annotated[str | None, typer.Option(help="Method of selection; see `list`.")] = None,
    selectivity: Annotated[float | None, typer.Option(help="Share of candidates to train on, in (0, 1].")] = None,
    option: Annotated[list[str] | None, typer.Option(help="More for the method, as name=value; repeatable.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Length of the run; the schedule stretches with it.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order, augmentation and selection.")] = 0,
    label_noise: Annotated[float, typer.Option(help="Fraction of training labels to make wrong.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for config, records and checkpoints.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of NAME/train.parquet and test.parquet.")] = None,
) -> None:
    """Train one model with one method.

    Examples:

    `selective-backprop train`

    `selective-backprop train --method ledger_backprop --option loss_share=0.8 --epochs 10 --out runs/a`

    `selective-backprop train --recipe svhn --model resnet20 --epochs 20 --data-dir data --out runs/b`
    """
    try:
        chosen = find_recipe(recipe)
        changes = {"dataset": dataset, "model": model, "epochs": epochs}
        chosen = chosen.with_(**{name: value for name, value in changes.items() if value is not None})
        settings = Settings(
            recipe=chosen,
            method=method or chosen.method,
            selectivity=chosen.selectivity if selectivity is None else selectivity,
            options=dict(_option(text) for text in option or []),
            seed=seed,
            label_noise=label_noise,
        )
        if resume and out is None:
            raise ValueError("--resume needs --out, the folder of the run to go on with")
        if out is not None and not resume and (out / "records.jsonl").exists():
            raise ValueError(f"{out} holds a run already: add --resume to go on with it, or choose another folder")
        make_method(settings.method, settings.selectivity, settings.options)  # a wrong name is told at once
        data = load_images(chosen.dataset, data_dir=data_dir)
        folder = RunFolder(out, settings.as_json()) if out is not None else None
        _train_with_bar(settings, data, folder)
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


def _option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--option takes name=value, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _train_with_bar(settings: Settings, data: Any, folder: RunFolder | None) -> None:
    console = Console()
    columns = (TextColumn(settings.method), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=settings.recipe.epochs, state="")

        def on_epoch(training: Training, record: Record) -> None:
            speed = record["offered"] / sum(record["seconds"].values())
            share = record["trained"] / record["offered"]
            state = (
                f"epoch {record['epoch'] + 1}/{settings.recipe.epochs}  error {record['test_error']:.2%}  "
                f"selectivity {share:.2f}  {speed:,.0f} examples/s"
            )
            progress.update(bar, completed=record["epoch"] + 1, state=state)
            if not console.is_terminal:
                print(state, flush=True)

        try:
            records = train_run(settings, data, folder=folder, on_epoch=on_epoch)
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


@app.command("list")
def list_names() -> None:
    """Data sets, models, recipes and methods that can be named."""
    console = Console()
    console.print("[bold]data sets[/]", ", ".join(NAMES), "or the path of a folder")
    console.print("[bold]models[/]", ", ".join(MODELS), "or package.module:function")
    console.print("[bold]methods[/]", ", ".join(METHODS))
    table = Table("recipe", "data set", "model", "epochs", "method", "selectivity", "from")
    for name, recipe in RECIPES.items():
        share = f"{recipe.selectivity:.2f}"
        table.add_row(name, recipe.dataset, recipe.model, str(recipe.epochs), recipe.method, share, recipe.source)
    console.print(table)


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of candidates for every method.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method.")] = 6,
) -> None:
    """Traditional, SB and Stale-SB side by side on scikit-learn's digits: a minute on two cores."""
    digits_demo.run(epochs, seeds)


if __name__ == "__main__":
    app()
