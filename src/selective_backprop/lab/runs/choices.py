"""Making methods from the names, selectivities and options on the command line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack, get_type_hints

from torch import Tensor, nn

import selective_backprop as sb
from selective_backprop import methods
from selective_backprop.files.reading import parse_json
from selective_backprop.lab.models import find_model
from selective_backprop.lab.plugins import load_plugin, names_of_plugins
from selective_backprop.lab.runs.method_options import MethodOption, check_type, options_of, suggestion
from selective_backprop.lab.runs.recipes import Recipe
from selective_backprop.methods.options import ScheduleOptions
from selective_backprop.types import Scorer

MakeNetwork = Callable[[str], nn.Module]
"""Makes a network by its name, for the run's data."""

ReferenceLosses = Callable[[str, int], Tensor]
"""Trains networks of this name for so many epochs, and returns their losses by id; see `cross_fitted_losses`."""


def _stand_in(name: str) -> nn.Module:
    """Check the name of a network. Its data are not known yet, so another network stands in for it."""
    find_model(name)
    return nn.Linear(1, 1)


def _diet(selectivity: float, /, **options: Any) -> sb.Method:
    from selective_backprop.lab.study.diet import diet_from_file  # imported late, because it imports this module

    return diet_from_file(selectivity, **options)


def _recorded(selectivity: float, /, *, run: str | None = None, **schedule: Unpack[ScheduleOptions]) -> sb.Method:
    """Train in each epoch on what an earlier run selected in it, for example a run with a small proxy model.

    Args:
        run: folder of the earlier run, as `train --out` or `compare --out` made it.
        schedule: as for `selective_backprop`.
    """
    from selective_backprop.lab.runs.ledger_log import read_selections  # imported late, for the same reason

    if run is None:
        raise ValueError("recorded_backprop needs run=FOLDER, the earlier run whose selection it repeats")
    return sb.recorded_backprop(read_selections(Path(run)), **schedule)


def _reducible(
    selectivity: float,
    /,
    *,
    reference: str | nn.Module | Tensor | None = None,
    reference_epochs: int = 2,
    scoring: str | Scorer = "eval",
    **schedule: Unpack[ScheduleOptions],
) -> sb.Method:
    """RHO-loss: train on the candidates whose loss is highest compared with that of a reference model.

    Args:
        reference: name of the network whose losses count as those that cannot be reduced.
        reference_epochs: number of epochs that it is trained for, before the run begins.
        scoring, schedule: as for `selective_backprop`.
    """
    assert reference_epochs and isinstance(reference, nn.Module | Tensor)  # `_with_reference` has trained it
    return sb.reducible_loss(reference, selectivity, scoring=scoring, **schedule)


def _at(method: Callable[..., sb.Method]) -> Callable[..., sb.Method]:
    """Make a function whose first argument is a selectivity. A method that has none ignores it."""
    if "selectivity" in inspect.signature(method).parameters:
        return lambda selectivity, /, **options: method(selectivity=selectivity, **options)
    return lambda selectivity, /, **options: method(**options)


_SPECIAL: dict[str, Callable[..., sb.Method]] = {
    "kath18": lambda selectivity, /, **options: sb.kath18(**({"ratio": 1 / selectivity} | options)),
    "composer_backprop": lambda selectivity, /, **options: sb.composer_backprop(**({"keep": selectivity} | options)),
    "recorded_backprop": _recorded,
    "reducible_loss": _reducible,
    "diet": _diet,
}
METHODS = {name: _at(getattr(methods, name)) for name in methods.__all__} | _SPECIAL
"""Methods of this package by name, each a function of a selectivity and options."""

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
    if ":" in name:
        load_plugin("methods", name)
    elif name not in METHODS:
        known = [*METHODS, *SHORT_NAMES, *names_of_plugins("methods")]
        hint = suggestion(name, known) or f": there are {', '.join([*METHODS, *names_of_plugins('methods')])}"
        raise ValueError(f"there is no method {name!r}{hint}")
    return name


def function_of(name: str) -> Callable[..., sb.Method]:
    """The function whose signature and docstring tell the options of a method, by its full name."""
    if ":" in name:
        return load_plugin("methods", name)
    if name == "diet":
        from selective_backprop.lab.study.diet import diet_from_file  # imported late, because it imports this module

        return diet_from_file
    return _SPECIAL[name] if name in ("recorded_backprop", "reducible_loss") else getattr(methods, name)


def has_selectivity(name: str) -> bool:
    """Whether a method, by its full name, takes a selectivity.

    >>> has_selectivity("ledger_percentile"), has_selectivity("ledger_backprop")
    (True, False)
    """
    if name in _SPECIAL:
        return name != "recorded_backprop"
    return "selectivity" in inspect.signature(function_of(name)).parameters


def make_method(
    name: str,
    selectivity: float,
    options: dict[str, Any] | None = None,
    make_network: MakeNetwork = _stand_in,
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
    options = _without_views(name, dict(options or {}))
    if isinstance(options.get("scoring"), float):
        options["scoring"] = str(options["scoring"])  # a scale factor, such as 0.875
    _check_options(name, options)
    made = _with_proxy(options, make_network)
    selectivity = made.pop("selectivity", selectivity)
    if name == "reducible_loss":
        made = _with_reference(made, make_network, reference_losses)
    try:
        method = (METHODS[name] if name in METHODS else _at(function_of(name)))(selectivity, **made)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made with {_spelled(options) or 'its defaults'}: {error}") from error
    if not isinstance(method, sb.Method):
        raise ValueError(f"method {name!r} must return a selective_backprop.Method, got {method!r:.50}")
    return method


def _spelled(options: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Raise for an option that the method does not have, or that has a wrong type."""
    known, function = known_options(name), function_of(name)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    forwards = takes_any and ":" in name and not options_of(function)
    for key, value in options.items():
        if key in ("train_every", "train_share") and key in known and "proxy" not in options:
            raise ValueError(f"{key} says how a proxy learns, and there is none: give proxy=MODEL too")
        if key in known:
            known[key].check(value)
        elif key == "selectivity" and has_selectivity(name):
            check_type(key, value, float)
        elif name == "diet" and isinstance(options.get("method", "sb"), str):
            inner = full_name(options.get("method", "sb"))
            _check_options(inner, {key: value})
        elif not forwards:
            hint = suggestion(key, [*known, *recipe_settings()]) or "."
            raise NoOptionError(f"{name} has no option {key!r}{hint} {_all_of(known)}")


def _all_of(known: dict[str, MethodOption]) -> str:
    return f"Its options are {', '.join(known)}" if known else "It has none"


class NoOptionError(ValueError):
    """A method was given an option that it does not have."""


def known_options(name: str) -> dict[str, MethodOption]:
    """Options of a method by name, those of a proxy included if it has a selection pass. `name` is a full name."""
    found = dict(options_of(function_of(name)))
    more = [*(PROXY_OPTIONS if "scoring" in found else ()), *([VIEWS] if name != "recorded_backprop" else ())]
    return found | {option.name: option for option in more}


PROXY_OPTIONS = (
    MethodOption("proxy", str, None, "name of a smaller network that scores for the one being trained"),
    MethodOption("train_every", int, 4, "with a proxy: it learns from every n-th training batch"),
    MethodOption("train_share", float, 1.0, "with a proxy: it learns from this share of the candidates, the hardest"),
)
"""Options of every method with a selection pass, on the command line alone."""

VIEWS = MethodOption(
    "views", int, None, "a seed from which images are augmented by id, so that other runs see the same"
)
"""Option of every method, on the command line alone."""


def recipe_settings() -> dict[str, Any]:
    """Settings of a recipe that an option may change for one method, such as lr: their annotations by name."""
    hints = get_type_hints(Recipe)
    return {name: hints[name] for name in hints if name not in ("method", "selectivity", "options", "decay", "source")}


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
        return dict(options)
    of_proxy = {key: options[key] for key in ("train_every", "train_share", "scoring") if key in options}
    rest = {key: value for key, value in options.items() if key not in ("proxy", *of_proxy)}
    return rest | {"scoring": sb.proxy(make_network(options["proxy"]), **of_proxy)}


def _with_reference(
    options: dict[str, Any], make_network: MakeNetwork, reference_losses: ReferenceLosses | None
) -> dict[str, Any]:
    rest = {key: value for key, value in options.items() if key != "reference_epochs"}
    name, epochs = options.get("reference"), options.get("reference_epochs", 2)
    if not isinstance(name, str):
        raise ValueError(f"reducible_loss needs reference=MODEL, the name of the network to compare with, got {name!r}")
    if epochs < 1:
        raise ValueError(f"reference_epochs must be a whole number >= 1, got {epochs!r}")
    return rest | {"reference": make_network(name) if reference_losses is None else reference_losses(name, epochs)}


_PLUGIN = re.compile(r"[\w.-]+:(?=[A-Za-z_]\w*(?:[@:]|$))")
"""The package of a plug-in, such as mypackage: in mypackage:thing. Options have a = after the name."""


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

        NAME may also be package:thing, a plug-in.

        >>> Choice.parse("EL2N + SB=sb@0.5:warmup_epochs=1").label
        'EL2N + SB'
        >>> Choice.parse("selective_backprop.methods:top_k@0.5:warmup_epochs=1").method
        'selective_backprop.methods:top_k'
        """
        label, text = split_off_label(text)
        plugin = _PLUGIN.match(text)
        package, rest = (plugin[0], text[plugin.end() :]) if plugin else ("", text)
        head, _, tail = rest.partition(":")
        name, at, selectivity = (package + head).partition("@")
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


def with_selectivity(
    method: str, selectivity: float | None, options: dict[str, Any]
) -> tuple[str, float | None, dict[str, Any]]:
    """Put the selectivity where the method reads it, or refuse it: it must never be ignored."""
    if selectivity is None:
        return method, selectivity, options
    if not 0 < selectivity <= 1:
        raise ValueError(f"selectivity must be in (0, 1], got {selectivity}")
    if not has_selectivity(method):
        instead = ", or use ledger_percentile" if method == "ledger_backprop" else ""
        raise ValueError(f"{method} has no selectivity, got {selectivity}: leave it out{instead}")
    return method, selectivity, options


_AS_IN_PYTHON = {"True": True, "False": False, "None": None, "inf": float("inf")}


def parse_option(text: str) -> tuple[str, Any]:
    """Parse name=value. The value is JSON, or True, False, None or inf as in Python, or else a string.

    >>> parse_option("every=3"), parse_option("mode=train"), parse_option("audit=True"), parse_option("cap=inf")
    (('every', 3), ('mode', 'train'), ('audit', True), ('cap', inf))
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"an option must be name=value, got {text!r}")
    if value in _AS_IN_PYTHON:
        return name, _AS_IN_PYTHON[value]
    try:
        return name, parse_json(value)
    except json.JSONDecodeError:
        return name, value
