"""Options that several commands have, and how their errors are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from selective_backprop.lab.datasets import ImageSet
from selective_backprop.lab.recipes import Recipe, find_recipe
from selective_backprop.lab.training import Settings, load_data

RecipeName = Annotated[str, typer.Option(help="Training setup; see `list`.")]
DataSet = Annotated[str | None, typer.Option(help="Data set by name or path, instead of the recipe's.")]
Model = Annotated[str | None, typer.Option(help="Model by name or package.module:function.")]
Selectivity = Annotated[float | None, typer.Option(help="Share of candidates to train on, in (0, 1].")]
Epochs = Annotated[int | None, typer.Option(help="Length of the run; the schedule stretches with it.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs per method.")]
LabelNoise = Annotated[float, typer.Option(help="Fraction of training labels to make wrong.")]
Validation = Annotated[
    float, typer.Option(help="Fraction of the training data to test on instead of the test set: for choosing settings.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of NAME/train.parquet and test.parquet.")]


def chosen_recipe(name: str, **changes: object) -> Recipe:
    """A recipe with what the command line says instead of it."""
    return find_recipe(name).with_(**{key: value for key, value in changes.items() if value is not None})


@contextmanager
def told_plainly() -> Iterator[None]:
    """What was wrong with the input, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None


def cached_loader(data_dir: Path | None) -> Callable[[Settings], ImageSet]:
    """The data of a run; runs with the same data share it in memory."""
    loaded: dict[tuple[str, int | None, float], ImageSet] = {}

    def load(settings: Settings) -> ImageSet:
        key = settings.recipe.dataset, settings.recipe.image_size, settings.validation
        if key not in loaded:
            loaded[key] = load_data(settings, data_dir)
        return loaded[key]

    return load
