"""Methods as a command line names them: [LABEL=]NAME[@SELECTIVITY][:OPTION=VALUE,...]."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from torch import nn

import selective_backprop as sb
from selective_backprop import methods
from selective_backprop_lab.models import find_model
from selective_backprop_lab.names import suggestion, unknown
from selective_backprop_lab.plugins import load_function
from selective_backprop_lab.runs.recipes import Recipe

MakeNetwork = Callable[[str], nn.Module]
"""Makes a network by its name, for the run's data."""


METHODS: dict[str, Callable[..., sb.Method]] = {name: getattr(methods, name) for name in methods.__all__}
"""Methods of this package by name."""

SHORT_NAMES = {
    "sb": "selective_backprop",
    "stale": "stale_selective_backprop",
    "predicted": "predicted_selective_backprop",
    "distance": "distance_backprop",
    "expected": "expected_selective_backprop",
    "ledger": "ledger_backprop",
    "composer": "composer_backprop",
    "proxy": "proxy_backprop",
    "random": "random_backprop",
}


def full_name(name: str) -> str:
    """The full name of a method. An unknown name is an error that suggests the nearest one.

    >>> full_name("sb")
    'selective_backprop'
    """
    name = SHORT_NAMES.get(name, name)
    module, separator, function = name.partition(":")
    if separator and (module in METHODS or module in SHORT_NAMES):
        raise ValueError(f"an option must be name=value, got {function!r}")
    if separator:
        load_function("method", name)
    elif name not in METHODS:
        raise unknown("method", name, [*METHODS, *SHORT_NAMES])
    return name


def short_name(name: str) -> str:
    """The short name of a method, or its full name if it has none."""
    return next((short for short, full in SHORT_NAMES.items() if full == name), name)


def function_of(name: str) -> Callable[..., sb.Method]:
    """The function that makes a method, by its full name."""
    return load_function("method", name) if ":" in name else METHODS[name]


# ---- options

_OF_PROXY = ("proxy", "train_every", "train_share")
"""Options of every method with a selection pass: a smaller network scores for the one being trained."""
_BY_NAME = {
    "diet": ("selectivity",),
    "proxy_backprop": _OF_PROXY,
    "repeated_random": ("shares",),
}
"""Options that name a run or a network, where the library takes an object."""
RECIPE_SETTINGS = tuple(
    item.name
    for item in dataclasses.fields(Recipe)
    if item.name not in ("method", "selectivity", "options", "decay", "source")
)
"""Settings of a recipe that an option may change for one method, such as lr."""


@cache
def options_of(name: str) -> dict[str, Any]:
    """Defaults of a method's options by their names, read from its signature; None for those without one.

    >>> options_of("infobatch")["prune"], "warmup_epochs" in options_of("top_k")
    (0.5, True)
    """
    found = dict[str, Any]()
    for parameter in inspect.signature(function_of(name), eval_str=True).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            for shared in get_args(parameter.annotation):  # of Unpack[...]
                found |= dict.fromkeys(get_type_hints(shared))
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            found[parameter.name] = None if parameter.default is parameter.empty else parameter.default
    return found | dict.fromkeys((*_BY_NAME.get(name, ()), *(_OF_PROXY if "scoring" in found else ())))


def has_selectivity(name: str) -> bool:
    """Whether a method, by its full name, takes a selectivity.

    >>> has_selectivity("top_k"), has_selectivity("infobatch")
    (True, False)
    """
    return "selectivity" in options_of(name)


def has_beta(name: str, options: dict[str, Any]) -> bool:
    """Whether these options of a method of this package give beta, which stands for a selectivity."""
    return "beta" in options and name in METHODS and "beta" in options_of(name)


def _require_known(name: str, options: Iterable[str]) -> None:
    """Raise for an option that the method does not have."""
    parameters = inspect.signature(function_of(name)).parameters.values()
    if ":" in name and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    for key in options:
        if key not in options_of(name):
            hint = suggestion(key, [*options_of(name), *RECIPE_SETTINGS]) or "."
            raise ValueError(f"{name} has no option {key!r}{hint} Its options are {', '.join(options_of(name))}")


# ---- making a method


def _stand_in(name: str) -> nn.Module:
    """Check the name of a network. Its data are not known yet, so another network stands in for it."""
    find_model(name)
    return nn.Linear(1, 1)


def make_method(
    name: str,
    selectivity: float,
    options: dict[str, Any] | None = None,
    make_network: MakeNetwork = _stand_in,
    of_run: Mapping[str, Any] = MappingProxyType({}),
) -> sb.Method:
    """Make a method from its name, its selectivity (if it has one) and its other options.

    Methods with a selection pass also take proxy=MODEL, the name of a network that scores for the one being trained,
    train_every=, how often that network learns, and train_share=, from how much of a batch. diet takes scores=FILE,
    method=, the method for the examples that are left, and the options of that method. A run passes make_network, which
    knows its data, and how a proxy learns: its optimizer and rate. Without them, the call only checks that the method
    can be made.

    >>> make_method("stale", 0.25, {"every": 2}).scorer.every
    2
    """
    name, given = full_name(name), dict(options or {})
    inner = {key: given.pop(key) for key in given.keys() - options_of(name)} if name == "diet" else {}
    _require_known(name, given)
    told = ",".join(f"{key}={value}" for key, value in given.items()) or "its defaults"
    of_proxy = {key: given.pop(key) for key in _OF_PROXY if key in given}
    if name == "proxy_backprop":
        network = make_network(_needed(name, of_proxy, "proxy", "MODEL, the name of a small network"))
        given |= {"proxy": network, **of_run, **of_proxy}
    elif "proxy" in of_proxy:
        if "scoring" in given:
            raise ValueError(f"a proxy scores in a way of its own: leave out scoring={given['scoring']}")
        given["scoring"] = sb.scorers.proxy(make_network(str(of_proxy.pop("proxy"))), **of_run, **of_proxy)
    elif of_proxy:
        raise ValueError(f"{' and '.join(of_proxy)} needs a proxy to learn: give proxy=MODEL too")
    if "shares" in given:  # one per epoch, as another method trained on them
        given["selectivity"] = given.pop("shares")
    if name == "diet":
        scores = _needed(name, given, "scores", "FILE, a file of scores as `diet score` writes it")
        inner_name, share = str(given.pop("method", "sb")), given.pop("selectivity", selectivity)
        method = make_method(inner_name, share, inner, make_network, of_run)
        given |= {"method": method, "scores": sb.pruning.load_scores(scores)}
    if has_selectivity(name) and name != "diet" and not has_beta(name, given):
        given.setdefault("selectivity", selectivity)
    try:
        method = function_of(name)(**given)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made with {told}: {error}") from error
    if not isinstance(method, sb.Method):
        raise ValueError(f"method {name!r} must return a selective_backprop.Method, got {method!r:.50}")
    return method


def _needed(name: str, options: dict[str, Any], option: str, what: str) -> str:
    """Take an option that must be given out of the others."""
    if option not in options:
        raise ValueError(f"{name} needs {option}={what}")
    return str(options.pop(option))


# ---- on the command line

_SPEC = re.compile(
    r"(?P<name>[\w.-]+:[A-Za-z_]\w*(?=[@:]|$)|[^:@]*)"  # module:function; an option has a = after its name
    r"(?:@(?P<selectivity>[^:]*))?(?::(?P<options>.*))?"
)


@dataclass(frozen=True)
class MethodSpec:
    """A method as one word on the command line, so that several can be listed.

    >>> MethodSpec.parse("stale@0.25:every=2,warmup_epochs=1")
    MethodSpec(label='stale@0.25:every=2,warmup_epochs=1', method='stale_selective_backprop', selectivity=0.25, \
options={'every': 2, 'warmup_epochs': 1})
    """

    label: str
    method: str
    """Full name."""
    selectivity: float | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Parse NAME, NAME@SELECTIVITY, NAME:OPTION=VALUE,... or both, with an optional LABEL= before it.

        NAME may also be module:function, of your own.

        >>> MethodSpec.parse("EL2N + SB=sb@0.5:warmup_epochs=1").label
        'EL2N + SB'
        >>> MethodSpec.parse("selective_backprop.methods:top_k@0.5:warmup_epochs=1").method
        'selective_backprop.methods:top_k'
        """
        label, rest = split_label(text)
        found = _SPEC.fullmatch(rest)
        if found is None:
            raise ValueError(f"a method is NAME, NAME@SELECTIVITY or NAME:OPTION=VALUE,..., got {text!r}")
        try:
            share = None if found["selectivity"] is None else float(found["selectivity"])
        except ValueError:
            raise ValueError(f"after @ there must be a selectivity, a number in (0, 1], got {text!r}") from None
        options = dict(parse_option(part) for part in (found["options"] or "").split(",") if part)
        return cls(label or rest, full_name(found["name"]), options=options).at(share)

    def at(self, selectivity: float | None) -> MethodSpec:
        """The same method at this selectivity. One that the method cannot use is refused."""
        if selectivity is None:
            return self
        if not 0 < selectivity <= 1:
            raise ValueError(f"selectivity must be in (0, 1], got {selectivity}")
        if not has_selectivity(self.method):
            instead = ", or use ledger_percentile" if self.method == "ledger_backprop" else ""
            raise ValueError(f"{self.method} has no selectivity, got {selectivity}: leave it out{instead}")
        if has_beta(self.method, self.options):
            raise ValueError(f"give either a selectivity or beta, got {selectivity} and beta={self.options['beta']}")
        return dataclasses.replace(self, selectivity=selectivity)


def split_label(text: str) -> tuple[str, str]:
    """Split the text into the user's label and the rest. The label ends with the first =, before any option.

    >>> split_label("mine=sb:every=3"), split_label("sb:every=3")
    (('mine', 'sb:every=3'), ('', 'sb:every=3'))
    """
    label, separator, rest = text.partition("=")
    return (label.strip(), rest) if separator and ":" not in label and "@" not in label else ("", text)


def parse_methods(texts: list[str]) -> list[MethodSpec]:
    """Parse several methods. The label is the name alone, unless two methods have the same name.

    >>> [spec.label for spec in parse_methods(["sb@0.25", "ledger:loss_share=0.8", "ledger:loss_share=0.9"])]
    ['sb', 'ledger:loss_share=0.8', 'ledger:loss_share=0.9']
    """
    specs = [MethodSpec.parse(text) for text in texts]
    names = [split_label(text)[0] or re.split("[@:]", text)[0] for text in texts]
    named = [
        dataclasses.replace(spec, label=name) if names.count(name) == 1 else spec
        for spec, name in zip(specs, names, strict=True)
    ]
    if len({spec.label for spec in named}) < len(named):
        raise ValueError(f"each method can be given once, got {', '.join(texts)}: tell them apart by LABEL=NAME")
    return named


def parse_option(text: str) -> tuple[str, Any]:
    """Parse name=value; see `parse_value`.

    >>> parse_option("every=3")
    ('every', 3)
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"an option must be name=value, got {text!r}")
    return name, parse_value(value)


def parse_value(text: str) -> Any:
    """A number, True, False or None as Python writes them, or else the text itself.

    >>> [parse_value(text) for text in ("3", "0.5", "inf", "True", "None", "train")]
    [3, 0.5, inf, True, None, 'train']
    """
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
