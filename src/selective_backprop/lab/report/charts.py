"""Vega-Lite for the charts that several sections draw."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from selective_backprop.lab.report.figures import Row, Spec, rounded
from selective_backprop.lab.report.theme import shape_of

# Names of runs are data, never part of an expression: nothing in them is ever run.
SHOWN = {"filter": "indexof(hidden, datum.method) < 0 && indexof(hidden, datum.budget) < 0"}
HIDDEN = {"name": "hidden", "value": []}
"""Methods and budgets that the reader has switched off; the page sets it in every chart."""

PERCENT = ".3~p"
PLOT_HEIGHT = 260


class Palette:
    """The same colour and marker for a method in every chart of every page, the same dashes for a budget.

    Args:
        methods: by the name that the page shows, the method's full name, which has the colour.
        budgets: in the order of their dashes.
    """

    def __init__(self, methods: Mapping[str, str], budgets: Sequence[str]) -> None:
        self.full_names, self.methods = list(methods.values()), list(methods)
        self.budgets = ["", *(budget for budget in budgets if budget)]

    def color(self, **more: Any) -> Spec:
        """Colour by method. The colours come from the theme, light or dark."""
        return {"field": "method", "type": "nominal", "scale": {"domain": self.methods}, "legend": None} | more

    def shape(self) -> Spec:
        """By method."""
        scale = {"domain": self.methods, "range": [shape_of(name) for name in self.full_names]}
        return {"field": "method", "type": "nominal", "scale": scale, "legend": None}

    def dash(self) -> Spec:
        """By budget; the whole line is the method as such."""
        dashes = [DASHES[i % len(DASHES)] for i in range(len(self.budgets))]
        scale = {"domain": self.budgets, "range": dashes}
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


def log_axis(field: str, title: str, low: float, high: float, **more: Any) -> Spec:
    """Logarithmic axis of a quantity from `low` to `high`, or a plain one if the quantity can be zero."""
    if low <= 0:
        return axis(field, title, domain=[0, high * 1.06 or 1], nice=False, **more)
    domain = [low * 0.94, high * 1.06]
    more |= {"values": log_ticks(*domain), "labelOverlap": "greedy"}
    return axis(field, title, scale_type="log", domain=domain, nice=False, **more)


def colors(field: str, names: Sequence[Any], range_: Sequence[str] | None = None, **more: Any) -> Spec:
    """Colour by a field other than the method; without a range, from the scheme dark2."""
    scale = {"domain": list(names)} | ({"scheme": "dark2"} if range_ is None else {"range": list(range_)})
    return {"field": field, "type": "nominal", "scale": scale, "legend": {}} | more


def layer(mark: str, encoding: Spec, *where: str | Spec, **style: Any) -> Spec:
    """A layer of marks with its style. `where` holds filters, or other transforms, of its rows."""
    transform = [{"filter": one} if isinstance(one, str) else one for one in where]
    return {"mark": {"type": mark} | style, "encoding": encoding} | ({"transform": transform} if transform else {})


def of_methods(
    layers: Sequence[Spec], *, height: int = PLOT_HEIGHT, params: Sequence[Spec] = (), where: Sequence[Spec] = ()
) -> Spec:
    """A chart whose methods the reader can hide."""
    return {"params": [HIDDEN, *params], "transform": [SHOWN, *where], "height": height, "layer": list(layers)}


def of_one(
    labels: Sequence[str], encoding: Spec, layers: Sequence[Spec], *, field: str = "run", params: Sequence[Spec] = ()
) -> Spec:
    """A chart of one method, which the reader chooses from a list below it."""
    where = [{"filter": f"datum.{field} === chosen"}]
    chosen = choice("chosen", labels, "method")
    return {"params": [chosen, *params], "transform": where, "encoding": encoding, "layer": list(layers)}


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


def choice(name: str, options: Sequence[Any], title: str, chosen: Any = None) -> Spec:
    """A list to choose from, below the chart; the first is chosen unless another is given."""
    bind = {"input": "select", "options": list(options), "name": title}
    return {"name": name, "value": options[0] if chosen is None else chosen, "bind": bind}


def is_flat(rows: Sequence[Row], *fields: str) -> bool:
    """Whether there is nothing to see: no row, or the same value in all of them.

    >>> is_flat([]), is_flat([{"a": 1.0}, {"a": 1.0}], "a"), is_flat([{"a": 1.0}, {"a": 0.5}], "a")
    (True, True, False)
    """
    return all(len({rounded(row.get(name)) for row in rows} - {None}) < 2 for name in fields)


WIDEST = 22
"""Characters in a line of a label; longer ones have several."""


def wrapped(label: str, width: int = WIDEST) -> str:
    """The whole of a label, in lines.

    >>> wrapped("repeated_random, 12 epochs of compute")
    'repeated_random, 12\\nepochs of compute'
    """
    return "\n".join(textwrap.wrap(label, width)) or label


def bars(
    labels: Sequence[str], encoding: Spec, *layers: Spec, params: Sequence[Spec] = (), where: Sequence[Spec] = ()
) -> Spec:
    """Horizontal bars, one for each label, which is never cut. Without layers, they are plain bars."""
    lines = {label: wrapped(label) for label in labels}
    values = [{"run": label, "lines": text} for label, text in lines.items()]
    lookup = {"lookup": "run", "from": {"data": {"values": values}, "key": "run", "fields": ["lines"]}}
    looks = {"title": None, "ticks": False, "domain": False, "labelLineHeight": _LINE}
    y = {"field": "lines", "type": "nominal", "sort": list(lines.values()), "axis": looks}
    most = max((text.count("\n") + 1 for text in lines.values()), default=1)
    height = max(22, most * _LINE + 6) * len(lines)
    shape: Spec = {"layer": list(layers)} if layers else {"mark": "bar"}
    return {
        "params": list(params),
        "transform": [*where, lookup],
        "height": height,
        "encoding": {"y": y} | encoding,
    } | shape


_LINE = 13  # pixels
_MOST_LABELS = 16


def label_ends(ends: Sequence[Row], x: Spec, y: Spec, palette: Palette, *, name: str = "run") -> tuple[list[Spec], int]:
    """Layers with the name of each line at the right edge, none above another, and what they need of room.

    Args:
        ends: the last row of each line.
        x, y: channels of the chart; y has its domain.
        name: field with the words.

    Returns:
        The layers, and the height of the chart. Many lines get no names: nobody could read them.
    """
    field: str = y["field"]
    low, high = y["scale"]["domain"]
    if not ends or len(ends) > _MOST_LABELS:
        return [], PLOT_HEIGHT
    lines = [wrapped(str(row[name])).count("\n") + 1 for row in ends]
    height = max(PLOT_HEIGHT, sum(lines) * _LINE + 24)
    is_log = y["scale"].get("type") == "log"
    scale = math.log if is_log else float
    span = scale(high) - scale(low) or 1.0
    pixels = [height * (scale(high) - scale(min(max(row[field], low), high))) / span for row in ends]
    placed = _spread_out(pixels, [count * _LINE for count in lines], height)
    values = []
    for row, place, count in zip(ends, placed, lines, strict=True):
        own = {key: rounded(row.get(key)) for key in ("method", "budget", x["field"], field)}
        # Vega has the first line at the place of a text, the others below it.
        for key, pixel in (("label y", place), ("text y", place - (count - 1) * _LINE / 2)):
            level = scale(high) - pixel / height * span
            own[key] = rounded(math.exp(level) if is_log else level)
        values.append(own | {"words": wrapped(str(row[name]))})
    at_edge = {"x": {"value": "width"}, "y": y | {"field": "text y"}}
    of_method = {"color": palette.color(), "shape": palette.shape()}
    leader = {"x": x, "x2": {"value": "width"}, "y": y, "y2": {"field": "label y"}, "color": palette.color()}
    words, style = {"text": {"field": "words"}}, {"align": "left", "baseline": "middle", "dx": 16, "lineHeight": _LINE}
    layers = [
        layer("rule", leader, strokeWidth=1, opacity=0.35),
        layer("point", at_edge | of_method, size=36, opacity=1, xOffset=9, clip=False),
        layer("text", at_edge | words, clip=False, **style),
    ]
    return [{"data": {"values": values}, "transform": [SHOWN], "layer": layers}], height


def _spread_out(places: Sequence[float], sizes: Sequence[float], height: float) -> list[float]:
    """Centres moved apart until none is on another, in the same order and within the height.

    >>> _spread_out([10.0, 12.0, 90.0], [10, 10, 10], 100)
    [10.0, 20.0, 90.0]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    edge = 0.0
    for i in order:
        moved[i] = max(moved[i], edge + sizes[i] / 2)
        edge = moved[i] + sizes[i] / 2
    edge = height
    for i in reversed(order):
        moved[i] = min(moved[i], edge - sizes[i] / 2)
        edge = moved[i] - sizes[i] / 2
    return moved
