"""Options that several commands have, and how their errors are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from selective_backprop.lab.recipes import Recipe, find_recipe

RecipeName = Annotated[str, typer.Option(help="Training setup; see `list`.")]
DataSet = Annotated[str | None, typer.Option(help="Data set by name or path, instead of the recipe's.")]
Model = Annotated[str | None, typer.Option(help="Model by name or package.module:function.")]
Selectivity = Annotated[float | None, typer.Option(help="Share of candidates to train on, in (0, 1].")]
Epochs = Annotated[int | None, typer.Option(help="Length of the run; the schedule stretches with it.")]
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
