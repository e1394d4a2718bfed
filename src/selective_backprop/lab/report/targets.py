"""A target error that the reader chooses: any multiple of plain training's final error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from selective_backprop.lab.report.figures import Spec

T = TypeVar("T")
_STEP = 0.1
FACTORS = [round(1 + _STEP * i, 2) for i in range(21)]
DEFAULT = 1.2

CHOSEN: Spec = {
    "name": "target",
    "value": DEFAULT,
    "bind": {
        "input": "range",
        "min": FACTORS[0],
        "max": FACTORS[-1],
        "step": _STEP,
        "name": "target: plain training's final error x",
    },
}
"""A slider below the chart."""
AT_TARGET: Spec = {"filter": "datum.from <= target + 0.001 && target + 0.001 < datum.to"}
"""Keeps the rows that hold at the chosen target. The sum makes up for rounding."""


def reached_at(errors: Sequence[float], target: float) -> int | None:
    """First epoch from which on no error is above the target; None if the last one is.

    >>> reached_at([0.3, 0.1, 0.2, 0.1], 0.15), reached_at([0.3, 0.1, 0.2, 0.1], 0.2), reached_at([0.3], 0.2)
    (3, 1, None)
    """
    reached = len(errors)
    while reached and errors[reached - 1] <= target:
        reached -= 1
    return reached if reached < len(errors) else None


def spans(value_at: Callable[[float], T]) -> list[tuple[float, float, T]]:
    """From, to (not included) and value, for each run of factors with the same value.

    >>> [(start, end) for start, end, _ in spans(lambda factor: factor >= 2)]
    [(1.0, 2.0), (2.0, 3.1)]
    """
    found: list[tuple[float, float, T]] = []
    for factor in FACTORS:
        value, end = value_at(factor), round(factor + _STEP, 2)
        if found and found[-1][2] == value:
            found[-1] = found[-1][0], end, value
        else:
            found.append((factor, end, value))
    return found


def spans_to_reach(errors: Sequence[float], final: float) -> list[tuple[float, float, int | None]]:
    """Spans of factors, each with the epoch that reaches these multiples of the final error; None if none does."""
    return spans(lambda factor: reached_at(errors, factor * final))


def at_targets(layers_of_spans: Sequence[tuple[float, float, Sequence[Spec]]]) -> list[Spec]:
    """Join layers of the same kinds, each with its own data, so that those of the chosen target are shown.

    Args:
        layers_of_spans: from, to and the layers with inline data, for each span of targets.
    """
    joined: dict[int, Spec] = {}
    for start, end, layers in layers_of_spans:
        for place, layer in enumerate(layers):
            values = [row | {"from": start, "to": end} for row in layer["data"]["values"]]
            if place in joined:
                joined[place]["data"]["values"] += values
            else:
                joined[place] = layer | {"data": {"values": values}, "transform": [*layer["transform"], AT_TARGET]}
    return list(joined.values())
