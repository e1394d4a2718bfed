"""The command selective-backprop list."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any

import typer

from selective_backprop_lab.cli.command import command
from selective_backprop_lab.cli.screen import OutputOptions, Screen


@command
def list_names(
    output: OutputOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method or a recipe, to see all about it; or `methods` or `recipes`, to see all of them."
        ),
    ] = None,
) -> None:
    """List data sets, models, recipes and methods; or show the options of a method, or the settings of a recipe.

    Examples:

    `selective-backprop list`

    `selective-backprop list methods`

    `selective-backprop list ledger`

    `selective-backprop list cifar10 --json`
    """
    from selective_backprop_lab.data.datasets import NAMES
    from selective_backprop_lab.models import MODELS
    from selective_backprop_lab.names import unknown
    from selective_backprop_lab.runs.methods import METHODS, SHORT_NAMES, full_name
    from selective_backprop_lab.runs.recipes import RECIPES

    screen = Screen(output)
    if name is None:
        spelled = {full: f"{full} ({short})" for short, full in SHORT_NAMES.items()}
        screen.say(f"data sets: {', '.join(NAMES)}. Or the path of a folder.\n")
        screen.say(f"models: {', '.join(MODELS)}. Or torchvision:NAME, or your own, as package.module:function.\n")
        screen.say(f"recipes: {', '.join(RECIPES)}\n")
        screen.say(f"methods, with their short names: {', '.join(spelled.get(one, one) for one in METHODS)}\n")
        screen.say("To see more: list methods, list recipes, list NAME.")
        screen.result({"datasets": NAMES, "models": list(MODELS), "recipes": list(RECIPES), "methods": list(METHODS)})
    elif name == "methods":
        found = [_about(one) for one in METHODS]
        screen.table("methods", ["method", "what it does"], [[one["name"], one["about"]] for one in found], words=2)
        screen.result({"methods": found})
    elif name == "recipes":
        columns = ["dataset", "model", "method", "epochs"]
        rows = [[key, *(str(getattr(recipe, column)) for column in columns)] for key, recipe in RECIPES.items()]
        screen.table("recipes", ["recipe", *columns], rows, words=4)
        screen.result({"recipes": [{"name": key} | dataclasses.asdict(recipe) for key, recipe in RECIPES.items()]})
    elif ":" in name or name in METHODS or name in SHORT_NAMES:
        _method(screen, full_name(name))
    elif name in RECIPES:
        settings = {"name": name} | dataclasses.asdict(RECIPES[name])
        for key, value in settings.items():
            screen.say(f"{key}: {value}")
        screen.result(settings)
    else:
        raise unknown("method or recipe", name, [*METHODS, *SHORT_NAMES, *RECIPES, "methods", "recipes"])


def _method(screen: Screen, name: str) -> None:
    from selective_backprop_lab.runs.methods import RECIPE_SETTINGS

    about = _about(name)
    screen.say(f"{name}{'[@SELECTIVITY]' if about['selectivity'] else ''}[:OPTION=VALUE,...]\n\n{about['about']}\n")
    told = (key if value is None else f"{key}={value}" for key, value in about["options"].items())
    screen.say(f"options and their defaults: {', '.join(told)}\n")
    settings = sorted(RECIPE_SETTINGS)
    screen.say(f"settings of the recipe that an option may change: {', '.join(settings)}")
    screen.result(about | {"recipe_settings": settings})


def _about(name: str) -> dict[str, Any]:
    """What a method does, and its options with their defaults."""
    from selective_backprop_lab.runs.methods import function_of, has_selectivity, options_of, short_name

    return {
        "name": name,
        "short": short_name(name),
        "about": (inspect.getdoc(function_of(name)) or "").partition("\n")[0],
        "selectivity": has_selectivity(name),
        "options": {key: value for key, value in options_of(name).items() if key != "selectivity"},
    }
