"""Options that several commands share, and how errors in them are shown."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from selective_backprop.lab.cli.watching import watching
from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.runs.recipes import Recipe, find_recipe
from selective_backprop.lab.runs.training import Observer, Settings, load_data

Seeds = Annotated[int, typer.Option(min=1, help="Runs per method, each with its own seed.")]
LabelNoise = Annotated[float, typer.Option(help="Fraction of training labels to replace by wrong ones.")]
Validation = Annotated[
    float, typer.Option(help="Test on this fraction of the training data, not on the test set: to choose settings.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder that holds NAME/train.parquet and NAME/test.parquet.")]
RunsFolder = Annotated[Path, typer.Option("--out", help="Folder for all runs and the tables.")]


@dataclass(frozen=True)
class DataOptions:
    """Options of every command that needs data."""

    recipe: Annotated[str, typer.Option(help="Training setup by name; see `list`.")] = "digits"
    dataset: Annotated[str | None, typer.Option(help="Data set by name or path. Default: the recipe's.")] = None
    data_dir: DataDir = None

    def chosen(self) -> Recipe:
        """The recipe with the changes from the command line."""
        names = {item.name for item in fields(self)} & {item.name for item in fields(Recipe)}
        changes = {name: getattr(self, name) for name in names}
        return find_recipe(self.recipe).with_(**{key: value for key, value in changes.items() if value is not None})


@dataclass(frozen=True)
class ModelOptions(DataOptions):
    """Options of every command that needs data and a model."""

    model: Annotated[
        str | None, typer.Option(help="Model by name, or package.module:function. Default: the recipe's.")
    ] = None


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    """Options of every command that trains methods, except the length of the runs."""

    validation: Validation = 0.0
    probe: Annotated[
        str | None, typer.Option(help="What to record, such as gradients,confidence,examples. Its time is not counted.")
    ] = None
    probe_at: Annotated[
        str | None, typer.Option(help="Epochs to probe, from 0, such as 0,5,9. Default: first, middle, last.")
    ] = None
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False

    def observers(self) -> Callable[[Path, Settings], Sequence[Observer]]:
        """A function that makes the observers of a run from its folder and settings. Wrong options fail at once."""
        return watching(self.probe, self.probe_at, self.tensorboard)


@dataclass(frozen=True)
class TrainingOptions(RunOptions):
    """Options of commands whose runs have one length."""

    epochs: Annotated[
        int | None, typer.Option(help="Epochs to train. The learning rate schedule stretches with it.")
    ] = None


@dataclass(frozen=True)
class ComparisonOptions(RunOptions):
    """Options of commands whose methods are trained at several lengths."""

    epochs: Annotated[
        str | None,
        typer.Option(
            help="Lengths of the runs, such as 2,3,4,6,8: each method gets a run of every length, its learning rate "
            "fully decayed. Default: the recipe's."
        ),
    ] = None

    def chosen(self) -> Recipe:
        """The recipe with the changes from the command line, at the longest of these lengths."""
        recipe = replace(self, epochs=None).chosen() if self.epochs is not None else super().chosen()
        return recipe.with_(epochs=max(self.lengths(recipe)))

    def lengths(self, recipe: Recipe) -> list[int]:
        """Lengths of the runs in epochs. Default: the recipe's."""
        if self.epochs is None:
            return [recipe.epochs]
        try:
            found = [int(part) for part in self.epochs.split(",")]
        except ValueError:
            found = [0]
        if min(found) < 1:
            raise ValueError(f"--epochs takes whole numbers from 1 on, such as 8 or 2,4,8, got {self.epochs!r}")
        return found


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a dataclass of options by the options in it."""
    parameters, hints = inspect.signature(command).parameters, get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    own = [parameter.replace(annotation=hints[name]) for name, parameter in parameters.items() if name not in groups]
    shared = [
        option for group in groups.values() for option in inspect.signature(group, eval_str=True).parameters.values()
    ]
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *shared)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{item.name: values.pop(item.name) for item in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **values)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


@contextmanager
def told_plainly() -> Iterator[None]:
    """Show errors in the user's input as a message, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None


def cached_loader(data_dir: Path | None) -> Callable[[Settings], ImageSet]:
    """Make a function that loads the data of a run. Runs with the same data share it in memory."""
    loaded: dict[tuple[str, int | None, float], ImageSet] = {}

    def load(settings: Settings) -> ImageSet:
        key = settings.recipe.dataset, settings.recipe.image_size, settings.validation
        if key not in loaded:
            loaded[key] = load_data(settings, data_dir)
        return loaded[key]

    return load
