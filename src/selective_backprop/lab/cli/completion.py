"""Names that a shell offers on TAB.

They are read from the source, because importing the modules would take seconds, and TAB must answer at once. Names of
plug-ins come from the entry points of installed packages, which are read without importing anything either.
"""

from __future__ import annotations

import ast
from pathlib import Path

from selective_backprop.lab.plugins import names_of_plugins
from selective_backprop.lab.runs.recipes import RECIPES

_PACKAGE = Path(__file__).parents[2]


def recipes(incomplete: str) -> list[str]:
    """Recipes whose name begins like this.

    >>> recipes("cifar100")
    ['cifar100', 'cifar100_fast']
    """
    return _matching(RECIPES, incomplete)


def methods(incomplete: str) -> list[str]:
    """Methods whose name begins like this. Words before the last =, @ or : are left to the user.

    >>> methods("led")
    ['ledger', 'ledger_backprop', 'ledger_percentile']
    """
    short = names_in("lab/runs/methods.py", "SHORT_NAMES")
    names = {*short, *names_in("methods/__init__.py", "__all__"), *names_of_plugins("methods")}
    return _matching(names, incomplete)


def models(incomplete: str) -> list[str]:
    """Models whose name begins like this.

    >>> models("wrn")
    ['wrn_28_10']
    """
    return _matching([*names_in("lab/models/__init__.py", "MODELS"), *names_of_plugins("models")], incomplete)


def datasets(incomplete: str) -> list[str]:
    """Data sets whose name begins like this.

    >>> datasets("c")
    ['cifar10', 'cifar100']
    """
    return _matching(["digits", *names_in("lab/data/decoding.py", "_HUB"), *names_of_plugins("datasets")], incomplete)


def names_in(file: str, variable: str) -> list[str]:
    """Read the strings of a list, or the keys of a dict, that a module of this package assigns to a variable."""
    for node in ast.parse((_PACKAGE / file).read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            value = node.value  # type: ignore[attr-defined]
            items = value.keys if isinstance(value, ast.Dict) else value.elts
            return [str(item.value) for item in items if isinstance(item, ast.Constant)]
    raise LookupError(f"{file} assigns nothing to {variable}")


def _matching(names: object, incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))  # type: ignore[attr-defined]
