"""Runs over a grid of settings, and which of them are on the Pareto frontier."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from selective_backprop.lab.runs.choices import (
    Choice,
    NoOptionError,
    has_selectivity,
    known_options,
    make_method,
    parse_option,
    recipe_settings,
    with_selectivity,
)
from selective_backprop.lab.runs.experiment import Entry
from selective_backprop.lab.runs.method_options import check_type, suggestion
from selective_backprop.lab.runs.recipes import RECIPES, Decay, Recipe
from selective_backprop.lab.runs.training import Settings
from selective_backprop.lab.study.comparison import Curves, settings_for
from selective_backprop.lab.study.curves import Axis, Curve, pareto_frontier

Point = dict[str, object]
"""A value for each setting that is varied."""


@dataclass(frozen=True)
class Vary:
    """A setting and the values it takes.

    >>> Vary.parse("selectivity=0.2,0.5")
    Vary(name='selectivity', values=(0.2, 0.5))
    """

    name: str
    values: tuple[object, ...]

    @classmethod
    def parse(cls, text: str) -> Vary:
        name, separator, values = text.partition("=")
        if not separator or not all(values.split(",")):
            raise ValueError(f"--vary takes name=value,value,..., got {text!r}")
        return cls(name, tuple(parse_option(f"value={value}")[1] for value in values.split(",")))


def grid(varied: Sequence[Vary]) -> Iterator[Point]:
    """Every combination of the values.

    >>> list(grid([Vary("a", (1, 2)), Vary("b", (3,))]))
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    names = [vary.name for vary in varied]
    if len(set(names)) < len(names):
        raise ValueError(f"each setting can be varied once, got {', '.join(names)}")
    for values in itertools.product(*(vary.values for vary in varied)):
        yield dict(zip(names, values, strict=True))


def sweep_entries(choices: Sequence[Choice], recipe: Recipe, points: Sequence[Point], **more: object) -> list[Entry]:
    """Runs of every method at every point. A setting that a method lacks is not varied for it; no run is made twice.

    A setting is one of `label_noise`, `selectivity`, `schedule` (a kind of decay or a recipe whose decay is taken),
    what a recipe has (model, epochs, lr, ...), or else an option of the methods that have it (every, loss_share, ...).
    `more` is for `Settings`: seed, validation.
    """
    entries: dict[str, Entry] = {}
    used: set[str] = set()
    for point in points:
        for choice in choices:
            settings, kept = _at(choice, recipe, point, more)
            used |= kept.keys()
            label = " ".join([choice.label, *(f"{name}={value}" for name, value in kept.items())])
            entries.setdefault(label, Entry(label, settings))
    for name in points[0].keys() - used:
        options = {option for choice in choices for option in known_options(choice.method)}
        known = sorted({*recipe_settings(), *options, "selectivity", "label_noise", "schedule"})
        hint = suggestion(name, known) or f". What can be varied here: {', '.join(known)}"
        raise ValueError(f"none of the methods has {name!r}, nor has the recipe{hint}")
    return list(entries.values())


_KINDS: dict[str, Any] = recipe_settings() | {"label_noise": float, "selectivity": float, "schedule": str}
"""Annotations of what can be varied for all methods."""


def _at(choice: Choice, recipe: Recipe, point: Point, more: dict[str, object]) -> tuple[Settings, Point]:
    """Settings of a method at a point, and the part of the point that applies to it."""
    kept: Point = {}
    for name, value in point.items():
        if name in _KINDS:
            check_type(name, value, _KINDS[name])
        if name == "label_noise":
            more = more | {name: value}
        elif name == "schedule":
            recipe = recipe.with_(decay=_decay(str(value)))
        elif name in _KINDS and name != "selectivity":
            recipe = recipe.with_(**{name: value})
        elif (changed := _with_option(choice, name, value, recipe)) is not None:
            choice = changed
        else:
            continue
        kept[name] = value
    return settings_for(choice, recipe, **more), kept


def _with_option(choice: Choice, name: str, value: object, recipe: Recipe) -> Choice | None:
    """The method with this option, or None if it has no such option."""
    if name == "selectivity":
        if not has_selectivity(choice.method):
            return None
        _, share, options = with_selectivity(choice.method, float(str(value)), choice.options)
        return dataclasses.replace(choice, selectivity=share, options=options)
    changed = dataclasses.replace(choice, options=choice.options | {name: value})
    settings = settings_for(changed, recipe)
    try:
        make_method(settings.method, settings.selectivity, settings.options)
    except NoOptionError:
        return None
    return changed


def _decay(text: str) -> Decay:
    if text in ("cosine", "linear", "triangle", "constant"):
        return Decay(kind=text)  # type: ignore[arg-type]
    if text not in RECIPES:
        known = ["cosine", "linear", "triangle", "constant", *RECIPES]
        raise ValueError(
            f"schedule must be cosine, linear, triangle, constant or a recipe whose schedule is taken, got {text!r}"
            f"{suggestion(text, known)}"
        )
    return RECIPES[text].decay


def comparable(entries: Sequence[Entry]) -> dict[float, list[Entry]]:
    """Group runs by label noise, because errors with more and fewer wrong labels cannot be compared."""
    groups: dict[float, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.settings.label_noise, []).append(entry)
    return groups


def pareto_shares(curves: Curves, axis: Axis) -> dict[str, list[str]]:
    """Labels of each method's points on the frontier of mean curves over seeds, most points first.

    >>> flat, steep = Curve([0.3, 0.2], [1, 2], [1, 2]), Curve([0.4, 0.1], [1, 2], [1, 2])
    >>> pareto_shares({"a x=1": [flat], "a x=2": [steep], "b": [Curve([0.5], [0.5], [0.5])]}, "seconds")
    {'a': ['a x=1', 'a x=2'], 'b': ['b']}
    """
    frontier = pareto_frontier({label: Curve.mean(by_seed) for label, by_seed in curves.items()}, axis)
    points: dict[str, list[str]] = {label.split(" ")[0]: [] for label in curves}
    for label, _, _ in frontier:
        points[label.split(" ")[0]].append(label)
    return dict(sorted(points.items(), key=lambda item: -len(item[1])))
