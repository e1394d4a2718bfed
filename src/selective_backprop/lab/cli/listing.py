"""The command selective-backprop list."""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command
from selective_backprop.lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.lab.runs.recipes import Recipe


class Kind(StrEnum):
    """What can be listed."""

    METHODS = "methods"
    RECIPES = "recipes"
    MODELS = "models"
    DATASETS = "datasets"


@command
def list_names(
    output: OutputOptions,
    kind: Annotated[Kind | None, typer.Argument(help="What to list. Default: everything.")] = None,
) -> None:
    """List data sets, models, recipes, and methods with their options. Plug-ins of other packages are listed too.

    Examples:

    `selective-backprop list`

    `selective-backprop list methods`

    `selective-backprop list recipes --json`
    """
    from selective_backprop.lab.data.datasets import NAMES
    from selective_backprop.lab.models import MODELS
    from selective_backprop.lab.plugins import names_of_plugins

    screen, found = Screen(output), dict[str, Any]()
    if kind in (None, Kind.DATASETS):
        found["datasets"] = [*NAMES, *names_of_plugins("datasets")]
        screen.say(f"data sets: {', '.join(found['datasets'])}. Or the path of a folder.\n")
    if kind in (None, Kind.MODELS):
        found["models"] = [*MODELS, *names_of_plugins("models")]
        screen.say(f"models: {', '.join(found['models'])}. Or your own, as package.module:function.\n")
    if kind in (None, Kind.RECIPES):
        found["recipes"] = _recipes(screen)
    if kind in (None, Kind.METHODS):
        found |= _methods(screen)
    screen.result(found)


def _recipes(screen: Screen) -> list[dict[str, Any]]:
    from selective_backprop.lab.runs.recipes import RECIPES

    heading = ["recipe", "data set", "model", "method", "epochs"]
    rows = [
        [name, recipe.dataset, recipe.model, _spelled(recipe), str(recipe.epochs)] for name, recipe in RECIPES.items()
    ]
    screen.table("recipes", heading, rows, words=4)
    sources: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        sources.setdefault(recipe.source, []).append(name)
    for source, names in sources.items():
        screen.say(f"{', '.join(names)}: {source}")
    screen.say()
    return [
        {"name": name, "dataset": recipe.dataset, "model": recipe.model, "epochs": recipe.epochs}
        | {"method": recipe.method, "selectivity": recipe.selectivity, "source": recipe.source}
        for name, recipe in RECIPES.items()
    ]


def _spelled(recipe: Recipe) -> str:
    """The method of a recipe as `train --method` takes it."""
    from selective_backprop.lab.runs.methods import has_selectivity, short_name

    share = f"@{recipe.selectivity:.2f}" if has_selectivity(recipe.method) else ""
    return short_name(recipe.method) + share


def _methods(screen: Screen) -> dict[str, Any]:
    from selective_backprop.lab.plugins import names_of_plugins
    from selective_backprop.lab.runs.methods import METHODS, recipe_settings

    screen.say("methods, as NAME[@SELECTIVITY][:OPTION=VALUE,...], with their options and defaults\n")
    methods = list[dict[str, Any]]()
    for name in [*METHODS, *names_of_plugins("methods")]:
        try:
            methods.append(about := _about(name))
        except ValueError as error:  # a plug-in that cannot be imported must not hide the others
            methods.append({"name": name, "error": str(error)})
            screen.say(f"{name}\n  cannot be used: {error}\n")
            continue
        names = name if about["short"] == name else f"{name} (short: {about['short']})"
        screen.say(names if about["selectivity"] else f"{names}, without @SELECTIVITY")
        screen.say(f"  {about['about']}")
        told = (key if value is None else f"{key}={value}" for key, value in about["options"].items())
        screen.say(f"  {', '.join(told)}\n")
    settings = sorted(recipe_settings())
    screen.say(f"settings of the recipe that an option may change, as in ledger:lr=0.2\n  {', '.join(settings)}")
    return {"methods": methods, "recipe_settings": settings}


def _about(name: str) -> dict[str, Any]:
    """What a method does, and its options with their defaults."""
    from selective_backprop.lab.runs.methods import defaults_of, function_of, has_selectivity, options_of, short_name

    defaults = defaults_of(name)
    return {
        "name": name,
        "short": short_name(name),
        "about": (inspect.getdoc(function_of(name)) or "").partition("\n")[0],
        "selectivity": has_selectivity(name),
        "options": {option: defaults.get(option) for option in options_of(name) if option != "selectivity"},
    }
