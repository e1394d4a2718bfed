"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from selective_backprop_lab.runs.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from selective_backprop_lab.data.datasets import ImageSet
    from selective_backprop_lab.runs.methods import MethodSpec
    from selective_backprop_lab.runs.training import Observer, Settings

Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Runs per method, each with its own seed.")]
LabelNoise = Annotated[float, typer.Option(help="Fraction of training labels to replace by wrong ones.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder that holds NAME/train.parquet and NAME/test.parquet.")]
RunsFolder = Annotated[Path, typer.Option("--out", help="Folder for all runs, the tables and the report.")]


@dataclass(frozen=True)
class DataOptions:
    """Options of every command that needs data."""

    recipe: Annotated[str, typer.Option(help="Training setup by name; see `list`.")] = "digits"
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set by name, path of a folder, or package.module:function. Default: the recipe's."),
    ] = None
    data_dir: DataDir = None
    image_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Height and width to resize images to. Default: the recipe's, or none."),
    ] = None
    validation: Annotated[
        float, typer.Option(help="Test on this fraction of the training data, not on the test set: to choose settings.")
    ] = 0.0

    def chosen(self) -> Recipe:
        """The recipe with the changes from the command line."""
        names = {item.name for item in fields(self)} & {item.name for item in fields(Recipe)}
        changes = {name: getattr(self, name) for name in names}
        return find_recipe(self.recipe).with_(**{key: value for key, value in changes.items() if value is not None})

    def plain_settings(self) -> Settings:
        """Settings of plain training by the recipe."""
        from selective_backprop_lab.runs.settings import Settings

        return Settings(recipe=self.chosen(), method="traditional", selectivity=1.0, validation=self.validation)


@dataclass(frozen=True)
class ModelOptions(DataOptions):
    """Options of every command that needs data and a model."""

    model: Annotated[
        str | None,
        typer.Option(help="Model by name, or package.module:function. Default: the recipe's."),
    ] = None


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    """Options of every command that trains methods, except the length of the runs."""

    probe: Annotated[
        str | None, typer.Option(help="What to record, such as gradients,confidence. Its time is not counted.")
    ] = None
    record: Annotated[
        Literal["dynamics"] | None,
        typer.Option(help="`dynamics` records what training says about each example, for `audit`."),
    ] = None

    def more_settings(self) -> dict[str, Any]:
        """Settings of all runs besides the recipe and the method."""
        return {"validation": self.validation, "record": self.record}

    def observers(self) -> Callable[[Path, Settings], Sequence[Observer]]:
        """A function that makes the observers of a run from its folder and settings. Wrong options fail at once."""
        from selective_backprop_lab.probes import make_probes
        from selective_backprop_lab.runs.ledger_log import LedgerLog

        probes = self.probe.split(",") if self.probe else []
        make_probes(probes, Path())

        return lambda folder, settings: [LedgerLog(folder), *make_probes(probes, folder)]


@dataclass(frozen=True)
class TrainingOptions(RunOptions):
    """Options of commands whose runs have one length."""

    epochs: Annotated[
        int | None, typer.Option(help="Epochs to train. The learning rate schedule stretches with it.")
    ] = None


@dataclass(frozen=True)
class ComparisonOptions(RunOptions):
    """Options of commands whose methods are trained at several lengths."""

    lengths: Annotated[
        str | None,
        typer.Option(
            "--epochs",
            help="Lengths of the runs, such as 2,4,8: each method gets a run of every length, its learning rate fully "
            "decayed. Default: a quarter, half and all of the recipe's.",
        ),
    ] = None

    def chosen(self) -> Recipe:
        """The recipe with the changes from the command line, at the longest of these lengths."""
        recipe = super().chosen()
        return recipe.with_(epochs=max(self.lengths_of(recipe)))

    def lengths_of(self, recipe: Recipe) -> list[int]:
        """Lengths of the runs in epochs."""
        if self.lengths is not None:
            return parse_lengths(self.lengths)
        return sorted({max(1, round(share * recipe.epochs)) for share in (0.25, 0.5, 1.0)})


def require_new(file: Path | None) -> None:
    """Raise if a file that will be written is there already."""
    if file is not None and file.exists():
        raise ValueError(f"{file} is there already: choose another name, or delete it")


def parse_lengths(text: str) -> list[int]:
    """Lengths of runs in epochs, such as 2,4,8."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ValueError(f"--epochs takes whole numbers from 1 on, such as 8 or 2,4,8, got {text!r}")
    return found


def cached_loader(data_dir: Path | None) -> Callable[[Settings], ImageSet]:
    """Make a function that loads the data of a run. Runs with the same data share it in memory."""
    from selective_backprop_lab.runs.training import load_data

    loaded: dict[tuple[str, int | None, float], ImageSet] = {}

    def load(settings: Settings) -> ImageSet:
        key = settings.recipe.dataset, settings.recipe.image_size, settings.validation
        if key not in loaded:
            loaded[key] = load_data(settings, data_dir)
        return loaded[key]

    return load


def checked_methods(texts: list[str], recipe: Recipe) -> list[MethodSpec]:
    """Parse all methods and make each once, so that a wrong one fails now and not after hours."""
    from selective_backprop_lab.runs.methods import make_method, parse_methods
    from selective_backprop_lab.study.comparison import settings_for

    specs = parse_methods(texts)
    for spec in specs:
        settings = settings_for(spec, recipe)
        make_method(settings.method, settings.selectivity, settings.options)
    return specs
