"""Settings of runs as plain values, and in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from selective_backprop.lab.report.runs import Run

_NOT_VARIED = ("seed", "label", "length", "method", "recipe.method", "recipe.selectivity", "recipe.source")


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by a short name, as plain values.

    Selectivity is that of the method; the ledger's is one of its options.
    """
    config = {key: value for key, value in run.config.items() if key not in ("recipe", "options")}
    recipe = {f"recipe.{key}": value for key, value in run.recipe.items()}
    flat = config | recipe
    plain = {key.rpartition(".")[2]: value for key, value in flat.items() if key not in _NOT_VARIED}
    plain |= run.config.get("options") or {}
    return {key: _plain(key, value) for key, value in plain.items()}


def _plain(key: str, value: Any) -> Any:
    if key == "decay" and isinstance(value, Mapping):
        milestones = value.get("milestones")
        places = [f"{at:.3g}" for at in milestones if isinstance(at, float)] if isinstance(milestones, list) else []
        return " ".join([str(value.get("kind", "")), *places])
    return value if isinstance(value, (int, float, str)) else json.dumps(value)


def words_of(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What sets each of these apart from the others.

    >>> words_of([{"lr": 0.1, "every": 2}, {"lr": 0.1, "every": 3}])
    ['every=2', 'every=3']
    """
    return [
        ", ".join(f"{key}={value}" for key, value in own.items() if any(other.get(key) != value for other in settings))
        for own in settings
    ]
