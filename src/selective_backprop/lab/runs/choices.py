"""Making methods from the names, selectivities and options on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn

import selective_backprop as sb
from selective_backprop import methods
from selective_backprop.files.reading import parse_json
from selective_backprop.lab.models import make_model

MakeNetwork = Callable[[str], nn.Module]
"""Makes a network by its name, for the run's data."""

ReferenceLosses = Callable[[str, int], Tensor]
"""Trains networks of this name for so many epochs, and returns their losses by id; see `cross_fitted_losses`."""

_for_any_data: MakeNetwork = partial(make_model, num_classes=10, channels=3, seed=0)


def _diet(selectivity: float, /, **options: Any) -> sb.Method:
    from selective_backprop.lab.study.diet import diet_from_file  # imported late, because it imports this module

    return diet_from_file(selectivity, **options)


def _recorded(selectivity: float, /, *, run: str | None = None, **options: Any) -> sb.Method:
    from selective_backprop.lab.runs.ledger_log import read_selections  # imported late, for the same reason

    if not isinstance(run, str):
        raise ValueError(f"recorded_backprop needs run=FOLDER, the earlier run whose selection it repeats, got {run!r}")
    return sb.recorded_backprop(read_selections(Path(run)), **options)


def _at(method: Callable[..., sb.Method]) -> Callable[..., sb.Method]:
    """Make a function whose first argument is a selectivity. A method that has none ignores it."""
    if "selectivity" in inspect.signature(method).parameters:
        return method
    return lambda selectivity, /, **options: method(**options)


_SPECIAL: dict[str, Callable[..., sb.Method]] = {
    # The loss share decides, unless the options name a selectivity.
    "ledger_backprop": lambda selectivity, /, **options: sb.ledger_backprop(**options),
    "kath18": lambda selectivity, /, **options: sb.kath18(1 / selectivity, **options),
    "composer_backprop": lambda selectivity, /, **options: sb.composer_backprop(**({"keep": selectivity} | options)),
    "reducible_loss": lambda selectivity, /, *, reference, **options: sb.reducible_loss(
        reference, selectivity, **options
    ),
    "recorded_backprop": _recorded,
    "diet": _diet,
}
METHODS = {name: _at(getattr(methods, name)) for name in methods.__all__} | _SPECIAL
"""Methods by name, each a function of a selectivity and options."""

_BY_OTHER_MEANS = {
    *(name for name, make in METHODS.items() if name not in _SPECIAL and make is not getattr(methods, name)),
    *("ledger_backprop", "recorded_backprop"),
}
"""Methods that have no selectivity, or use one only if the user gives it."""

SHORT_NAMES = {
    "sb": "selective_backprop",
    "stale": "stale_selective_backprop",
    "predicted": "predicted_selective_backprop",
    "distance": "distance_backprop",
    "expected": "expected_selective_backprop",
    "ledger": "ledger_backprop",
    "composer": "composer_backprop",
    "random": "random_backprop",
    "recorded": "recorded_backprop",
}


def full_name(name: str) -> str:
    """The full name of a method. An unknown name is an error that suggests the nearest one.

    >>> full_name("sb")
    'selective_backprop'
    """
    name = SHORT_NAMES.get(name, name)
    if name not in METHODS:
        nearest = difflib.get_close_matches(name, [*METHODS, *SHORT_NAMES], n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(METHODS)}"
        raise ValueError(f"there is no method {name!r}: {hint}")
    return name


def make_method(
    name: str,
    selectivity: float,
    options: dict[str, Any] | None = None,
    make_network: MakeNetwork = _for_any_data,
    reference_losses: ReferenceLosses | None = None,
) -> sb.Method:
    """Make a method from its name, its selectivity (if it has one) and its other options.

    Methods with a selection pass also take proxy=MODEL, the name of a network that scores for the one being trained,
    train_every=, how often that network learns, and train_share=, from how much of a batch. reducible_loss takes
    reference=MODEL and reference_epochs=, the network whose losses count as those that cannot be reduced. A run passes
    make_network and reference_losses, which know its data. Without them, the call only checks that the method can be
    made. Every method takes views=SEED, from which the run draws its augmentation by id.

    >>> make_method("stale", 0.25, {"every": 2}).scorer.every
    2
    """
    name = full_name(name)
    options = _with_proxy(_without_views(name, options or {}), make_network)
    if name == "reducible_loss":
        options = _with_reference(options, make_network, reference_losses)
    try:
        return METHODS[name](selectivity, **options)
    except TypeError as error:
        known = _option_names(getattr(sb, name)) + ["reference_epochs"] * (name == "reducible_loss")
        unknown = [] if name in ("diet", "recorded_backprop") else [key for key in options if key not in known]
        wrong = ", ".join(unknown) or error
        raise ValueError(f"{name} does not take these options: {wrong}. It has {', '.join(known)}") from None


def _option_names(method: Callable[..., sb.Method]) -> list[str]:
    """Options of a method besides its selectivity, with those that it shares with other methods."""
    names: list[str] = []
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (shared,) = get_args(get_type_hints(method, include_extras=True)[parameter.name])
            names += sorted(shared.__optional_keys__)
        else:
            names.append(parameter.name)
    return [name for name in names if name != "selectivity"]


def _without_views(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options without views=, which the run itself reads."""
    if "views" not in options:
        return options
    seed = options["views"]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"views= takes a seed, a whole number, got {seed!r}")
    if name == "recorded_backprop":
        raise ValueError("recorded_backprop sees the views of the run that it repeats: leave out views=")
    return {key: value for key, value in options.items() if key != "views"}


def _with_proxy(options: dict[str, Any], make_network: MakeNetwork) -> dict[str, Any]:
    if "proxy" not in options:
        return options
    of_proxy = {key: options[key] for key in ("train_every", "train_share", "scoring") if key in options}
    rest = {key: value for key, value in options.items() if key not in ("proxy", *of_proxy)}
    if not isinstance(options["proxy"], str):
        raise ValueError(f"proxy= takes the name of a model, got {options['proxy']!r}")
    return rest | {"scoring": sb.proxy(make_network(options["proxy"]), **of_proxy)}


def _with_reference(
    options: dict[str, Any], make_network: MakeNetwork, reference_losses: ReferenceLosses | None
) -> dict[str, Any]:
    rest = {key: value for key, value in options.items() if key != "reference_epochs"}
    name, epochs = options.get("reference"), options.get("reference_epochs", 2)
    if not isinstance(name, str):
        raise ValueError(f"reducible_loss needs reference=MODEL, the name of the network to compare with, got {name!r}")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"reference_epochs must be a whole number >= 1, got {epochs!r}")
    return rest | {"reference": make_network(name) if reference_losses is None else reference_losses(name, epochs)}


@dataclass(frozen=True)
class Choice:
    """A method as one word on the command line, so that several can be listed.

    >>> Choice.parse("stale@0.25:every=2,warmup_epochs=1")
    Choice(label='stale@0.25:every=2,warmup_epochs=1', method='stale_selective_backprop', selectivity=0.25, \
options={'every': 2, 'warmup_epochs': 1})
    """

    label: str
    method: str
    selectivity: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Parse NAME, NAME@SELECTIVITY, NAME:OPTION=VALUE,... or both, with an optional LABEL= before it.

        >>> Choice.parse("EL2N + SB=sb@0.5:warmup_epochs=1").label
        'EL2N + SB'
        """
        label, text = split_off_label(text)
        head, _, tail = text.partition(":")
        name, at, selectivity = head.partition("@")
        try:
            share = float(selectivity) if at else None
        except ValueError:
            raise ValueError(f"after @ there must be a selectivity, a number in (0, 1], got {text!r}") from None
        options = dict(parse_option(part) for part in tail.split(",") if part)
        return cls(label or text, *with_selectivity(full_name(name), share, options))


def split_off_label(text: str) -> tuple[str, str]:
    """Split the text into the user's label and the rest. The label ends with the first =, before any option.

    >>> split_off_label("mine=sb:every=3"), split_off_label("sb:every=3")
    (('mine', 'sb:every=3'), ('', 'sb:every=3'))
    """
    label, separator, rest = text.partition("=")
    return (label.strip(), rest) if separator and ":" not in label and "@" not in label else ("", text)


def name_choices(texts: list[str]) -> list[Choice]:
    """Parse several methods. The label is the name alone, unless two methods have the same name.

    >>> [choice.label for choice in name_choices(["sb@0.25", "ledger:loss_share=0.8", "ledger:loss_share=0.9"])]
    ['sb', 'ledger:loss_share=0.8', 'ledger:loss_share=0.9']
    """
    choices = [Choice.parse(text) for text in texts]
    names = [split_off_label(text)[0] or re.split("[@:]", text)[0] for text in texts]
    named = [
        dataclasses.replace(choice, label=name) if names.count(name) == 1 else choice
        for choice, name in zip(choices, names, strict=True)
    ]
    labels = [choice.label for choice in named]
    if len(set(labels)) < len(labels):
        raise ValueError(f"each method can be given once, got {', '.join(texts)}: tell them apart by LABEL=NAME")
    return named


def has_selectivity(method: str) -> bool:
    """Whether the method takes a selectivity, be it only as an option.

    >>> has_selectivity("ledger_backprop"), has_selectivity("infobatch")
    (True, False)
    """
    return method not in _BY_OTHER_MEANS or method == "ledger_backprop"


def with_selectivity(
    method: str, selectivity: float | None, options: dict[str, Any]
) -> tuple[str, float | None, dict[str, Any]]:
    """Put the selectivity where the method reads it, or refuse it: it must never be ignored."""
    if selectivity is None or method not in _BY_OTHER_MEANS:
        return method, selectivity, options
    if has_selectivity(method):
        return method, None, options | {"selectivity": selectivity}
    raise ValueError(f"{method} has no selectivity, got {selectivity}: leave it out")


def parse_option(text: str) -> tuple[str, Any]:
    """Parse name=value. The value is JSON or, if it is no JSON, a string.

    >>> parse_option("every=3"), parse_option("mode=train")
    (('every', 3), ('mode', 'train'))
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"an option must be name=value, got {text!r}")
    try:
        return name, parse_json(value)
    except json.JSONDecodeError:
        return name, value
