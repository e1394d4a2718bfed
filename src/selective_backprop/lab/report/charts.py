"""Vega-Lite for the charts that several sections draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selective_backprop.lab.report.figures import Spec

# Names of runs are data, never part of an expression: nothing in them is ever run.
SHOWN = {"filter": "indexof(hidden, datum.method) < 0 && indexof(hidden, datum.budget) < 0"}
HIDDEN = {"name": "hidden", "value": []}
"""Methods and budgets that the reader has switched off; the page sets it in every chart."""

PERCENT = ".3~p"


class Palette:
    """The same colour for a method in every chart, the same dashes for a budget."""

    def __init__(self, methods: Sequence[str], budgets: Sequence[str]) -> None:
        self.methods, self.budgets = list(methods), list(budgets)

    def color(self, **more: Any) -> Spec:
        """Colour by method. The colours come from the theme, light or dark."""
        return {"field": "method", "type": "nominal", "scale": {"domain": self.methods}, "legend": None} | more

    def dash(self) -> Spec:
        """By budget; the whole line is the method as such."""
        scale = {"domain": self.budgets, "range": DASHES[: len(self.budgets)] or [[1, 0]]}
        return {"field": "budget", "type": "nominal", "scale": scale, "legend": None}


DASHES = [[1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [10, 5], [1, 4], [5, 1], [3, 6]]


def axis(field: str, title: str, **more: Any) -> Spec:
    """Axis of a quantity. Options for its scale, format and so on go into `more`."""
    scale: Spec = {key: more.pop(key) for key in ("domain", "zero", "scale_type", "nice", "padding") if key in more}
    if "scale_type" in scale:
        scale["type"] = scale.pop("scale_type")
    channel: Spec = {"field": field, "type": "quantitative", "title": title, "axis": more}
    return channel | ({"scale": scale} if scale else {})


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of a logarithmic axis: the coarsest set that has three in the span.

    >>> log_ticks(0.06, 0.7), log_ticks(0.06, 0.35), log_ticks(0.31, 0.36)
    ([0.1, 0.2, 0.5], [0.07, 0.1, 0.2, 0.3], [0.32, 0.34, 0.36])
    """
    for steps in ((1, 2, 5), (1, 2, 3, 5, 7), range(1, 10), [0.2 * i for i in range(5, 50)]):
        ticks = [float(f"{step * 10.0**power:.6g}") for power in range(-6, 4) for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            break
    return inside


def tooltip(**fields: str) -> list[Spec]:
    """Tooltip from titles to fields, or to field|format for numbers.

    >>> tooltip(run="label", error="error|.2%")[1]
    {'field': 'error', 'title': 'error', 'type': 'quantitative', 'format': '.2%'}
    """
    rows = []
    for title, text in fields.items():
        name, _, number_format = text.partition("|")
        row: Spec = {"field": name, "title": title.replace("_", " "), "type": "nominal"}
        rows.append(row | ({"type": "quantitative", "format": number_format} if number_format else {}))
    return rows


def choice(name: str, options: Sequence[str], title: str) -> Spec:
    """A list to choose from, below the chart."""
    return {"name": name, "value": options[0], "bind": {"input": "select", "options": list(options), "name": title}}
