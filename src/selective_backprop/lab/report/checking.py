"""Check the files of a run when they are read, so that errors do not appear in the middle of a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from selective_backprop.lab.runs.training import Record

_OF_RECORDS = ("epoch", "test_error", "offered", "scored", "trained", "skipped_before_loading", "batches", "compute")
_PHASES = ("loading", "selection", "forward", "backward", "other", "evaluation")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError for the first setting that is missing or of a wrong kind."""
    recipe = config.get("recipe")
    if not isinstance(recipe, dict):
        raise ValueError(f"recipe must be settings by name, got {recipe!r:.50}")
    for place, name in ((config, "method"), (recipe, "dataset"), (recipe, "model")):
        if not isinstance(place.get(name), str):
            raise ValueError(f"{name} must be a word, got {place.get(name)!r:.50}")
    for name in ("epochs", "batch_size"):
        _require_number(recipe.get(name), name, least=1)
    _require_number(config.get("seed"), "seed", least=-math.inf)
    for name in ("label_noise", "validation"):
        _require_number(config.get(name, 0), name)
    for place, name in ((config, "length"), (recipe, "image_size")):
        if place.get(name) is not None:
            _require_number(place[name], name)
    for place, name in ((config, "options"), (recipe, "decay")):
        if not isinstance(place.get(name) or {}, dict):
            raise ValueError(f"{name} must be settings by name, got {place[name]!r:.50}")


def check_record(record: Record, number: int) -> None:
    """Raise ValueError for the first value that is missing from the record of this epoch or is not a number."""
    where = f"of record {number}"
    for name in _OF_RECORDS:
        _require_number(record.get(name), f"{name} {where}", least=1 if name == "offered" else 0)
    seconds = record.get("seconds")
    if not isinstance(seconds, dict):
        raise ValueError(f"seconds {where} must be a number by phase, got {seconds!r:.50}")
    for phase in {*_PHASES, *seconds}:
        _require_number(seconds.get(phase), f"seconds of {phase} {where}")


def _require_number(value: object, what: str, *, least: float = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a number, got {value!r:.50}")
    # Larger integers cannot be added to floats.
    if not least <= value <= 1e300:
        raise ValueError(f"{what} must be finite and at least {least}, got {value!r:.50}")
