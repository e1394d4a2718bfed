"""The command selective-backprop list."""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selective_backprop.lab.cli.command import command
from selective_backprop.lab.cli.screen import OutputOptions, Screen

if TYPE_CHECKING:
    from selective_backprop.lab.runs.method_options import MethodOption
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
    from selective_backprop.lab.runs.choices import SHORT_NAMES

    short = next(name for name, full in SHORT_NAMES.items() if full == recipe.method)
    return short if recipe.method == "ledger_backprop" else f"{short}@{recipe.selectivity:.2f}"


def _methods(screen: Screen) -> dict[str, Any]:
    from selective_backprop.lab.plugins import names_of_plugins
    from selective_backprop.lab.runs.choices import METHODS, SHORT_NAMES, recipe_settings

    screen.say("methods, as NAME[@SELECTIVITY][:OPTION=VALUE,...]\n")
    short = {full: name for name, full in SHORT_NAMES.items()}
    methods, shared = list[dict[str, Any]](), dict[str, Any]()
    for name in [*METHODS, *names_of_plugins("methods")]:
        try:
            about = _about(name)
        except ValueError as error:  # a plug-in that cannot be imported must not hide the others
            methods.append({"name": name, "error": str(error)})
            screen.say(f"{name}\n  cannot be used: {error}\n")
            continue
        also, own = about.pop("shared"), about["options"]
        shared |= {option["name"]: option for option in also}
        methods.append({"name": name, "short": short.get(name), **about, "shared_options": [o["name"] for o in also]})
        names = f"{name} (short: {short[name]})" if name in short else name
        screen.say(names if about["selectivity"] else f"{names}, without @SELECTIVITY")
        screen.say(f"  {about['about']}")
        for option in own:
            screen.say(f"  - {_line(option)}")
        if also:
            screen.say(f"  also: {', '.join(option['name'] for option in also)}")
        screen.say()
    screen.say("options that several methods share")
    for _, option in sorted(shared.items()):
        screen.say(f"  - {_line(option)}")
    settings = sorted(recipe_settings())
    screen.say(f"\nsettings of the recipe that an option may change, as in ledger:lr=0.2\n  {', '.join(settings)}")
    return {"methods": methods, "shared_options": list(shared.values()), "recipe_settings": settings}


def _about(name: str) -> dict[str, Any]:
    """What a method does, and its options: its own, and those that it shares with others."""
    from selective_backprop.lab.runs.choices import PROXY_OPTIONS, VIEWS, function_of, has_selectivity, known_options
    from selective_backprop.lab.runs.method_options import is_shared

    everywhere = (*PROXY_OPTIONS, VIEWS)
    options = [(is_shared(option) or option in everywhere, _as_json(option)) for option in known_options(name).values()]
    return {
        "about": (inspect.getdoc(function_of(name)) or "").partition("\n")[0],
        "selectivity": has_selectivity(name),
        "options": [as_json for shared, as_json in options if not shared],
        "shared": [as_json for shared, as_json in options if shared],
    }


def _as_json(option: MethodOption) -> dict[str, Any]:
    return {"name": option.name, "default": option.default_value, "about": option.help}


def _line(option: dict[str, Any]) -> str:
    default = option["default"]
    words = {True: "true", False: "false"}.get(default, default) if isinstance(default, bool) else default
    return f"{option['name']}{'' if default is None else f' [{words}]'}: {option['about']}"
