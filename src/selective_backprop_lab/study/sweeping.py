"""Runs over a grid of settings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from selective_backprop.options import require_numbers
from selective_backprop_lab.names import suggestion
from selective_backprop_lab.runs.experiment import Entry
from selective_backprop_lab.runs.methods import RECIPE_SETTINGS, MethodSpec, has_selectivity, options_of, parse_value
from selective_backprop_lab.runs.recipes import RECIPES, Decay, Recipe
from selective_backprop_lab.runs.training import Settings
from selective_backprop_lab.study.comparison import settings_for

Combination = dict[str, object]
"""A value for each setting that is varied."""


def grid(varied: Sequence[str]) -> list[Combination]:
    """Every combination of the values of settings, each written as name=value,value,...

    >>> grid(["selectivity=0.2,0.5", "every=3"])
    [{'selectivity': 0.2, 'every': 3}, {'selectivity': 0.5, 'every': 3}]
    """
    values: dict[str, list[object]] = {}
    for text in varied:
        name, separator, words = text.partition("=")
        if not separator or not all(words.split(",")):
            raise ValueError(f"--vary takes name=value,value,..., got {text!r}")
        if name in values:
            raise ValueError(f"each setting can be varied once, got {name} twice")
        values[name] = [parse_value(word) for word in words.split(",")]
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def sweep_entries(
    specs: Sequence[MethodSpec], recipe: Recipe, combinations: Sequence[Combination], **more: object
) -> list[Entry]:
    """Runs of every method at every combination. A setting that a method lacks is not varied for it.

    A setting is one of `label_noise`, `selectivity`, `schedule` (a kind of decay or a recipe whose decay is taken),
    what a recipe has (model, epochs, lr, ...), or else an option of the methods that have it (every, loss_share, ...).
    `more` is for `Settings`: seed, validation.
    """
    entries: dict[str, Entry] = {}
    used: set[str] = set()
    for combination in combinations:
        for spec in specs:
            settings, kept = _at(spec, recipe, combination, more)
            used |= kept.keys()
            label = " ".join([spec.label, *(f"{name}={value}" for name, value in kept.items())])
            entries.setdefault(label, Entry(label, settings))
    for name in combinations[0].keys() - used:
        options = {option for spec in specs for option in options_of(spec.method)}
        known = sorted({*RECIPE_SETTINGS, *options, "selectivity", "label_noise", "schedule"})
        hint = suggestion(name, known) or f". What can be varied here: {', '.join(known)}"
        raise ValueError(f"none of the methods has {name!r}, nor has the recipe{hint}")
    return list(entries.values())


def _at(
    spec: MethodSpec, recipe: Recipe, combination: Combination, more: dict[str, object]
) -> tuple[Settings, Combination]:
    """Settings of a method at a combination, and the part of it that applies to the method."""
    kept: Combination = {}
    for name, value in combination.items():
        if name == "label_noise":
            more = more | {name: value}
        elif name == "schedule":
            recipe = recipe.with_(decay=_decay(str(value)))
        elif name == "selectivity" and has_selectivity(spec.method):
            require_numbers(selectivity=value)
            spec = spec.at(float(str(value)))
        elif name in RECIPE_SETTINGS:
            recipe = recipe.with_(**{name: value})
        elif name in options_of(spec.method):
            spec = dataclasses.replace(spec, options=spec.options | {name: value})
        else:
            continue
        kept[name] = value
    return settings_for(spec, recipe, **more), kept


def _decay(text: str) -> Decay:
    kinds = ("cosine", "linear", "triangle", "constant")
    if text not in (*kinds, *RECIPES):
        raise ValueError(
            f"schedule must be {', '.join(kinds)} or a recipe whose schedule is taken, got {text!r}"
            f"{suggestion(text, [*kinds, *RECIPES])}"
        )
    return RECIPES[text].decay if text in RECIPES else Decay(kind=text)  # type: ignore[arg-type]
