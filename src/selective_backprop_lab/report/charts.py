"""Vega-Lite for the charts that several sections draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selective_backprop_lab.report.figures import Row, Spec, rounded
from selective_backprop_lab.report.theme import shape_of

# Names of runs are data, never part of an expression: nothing in them is ever run.
SHOWN = {"filter": "indexof(hidden, datum.method) < 0 && indexof(hidden, datum.budget) < 0"}
HIDDEN = {"name": "hidden", "value": []}
"""Methods and budgets that the reader has switched off; the page sets it in every chart."""

PERCENT = ".3~p"
_DASHES = [[1, 0], [6, 3], [2, 2], [10, 3, 2, 3], [10, 5], [1, 4], [5, 1], [3, 6]]


class Palette:
    """The same colour and marker for a method in every chart of every page, and dashes for its budgets.

    Args:
        methods: by the name that the page shows, the method's full name, which has the colour.
        budgets: all budgets on the page.
    """

    def __init__(self, methods: Mapping[str, str], budgets: Sequence[str] = ()) -> None:
        self.full_names, self.methods = list(methods.values()), list(methods)
        self.budgets = [budget for budget in budgets if budget]

    def color(self, rows: Sequence[Row]) -> Spec:
        """Colour by method, with a legend of the methods in these rows. The colours come from the theme."""
        present = {row["method"] for row in rows}
        legend = {"values": [name for name in self.methods if name in present]}
        return {"field": "method", "type": "nominal", "scale": {"domain": self.methods}, "legend": legend}

    def shape(self, rows: Sequence[Row]) -> Spec:
        """Marker by method."""
        shapes = [shape_of(name) for name in self.full_names]
        return self.color(rows) | {"scale": {"domain": self.methods, "range": shapes}}

    def dash(self, rows: Sequence[Row]) -> Spec:
        """Dashes by the budgets in these rows; the whole line is the method as such."""
        budgets = sorted({row["budget"] for row in rows}, key=lambda budget: (self.place_of(budget), budget))
        scale = {"domain": budgets, "range": [_DASHES[i % len(_DASHES)] for i in range(len(budgets))]}
        legend = {"values": [budget for budget in budgets if budget], "symbolType": "stroke", "symbolSize": 500}
        return {"field": "budget", "type": "nominal", "scale": scale, "legend": legend if len(budgets) > 1 else None}

    def place_of(self, budget: str) -> int:
        """Order of budgets: none first, then as on the page."""
        return self.budgets.index(budget) if budget in self.budgets else -1

    def lines(self, rows: Sequence[Row], x: Spec, y: Spec) -> list[Spec]:
        """Layers with a line for every run, and a marker at each of its points."""
        shared = {"x": x, "y": y, "detail": {"field": "run"}, "color": self.color(rows)}
        return [
            layer("line", shared | {"strokeDash": self.dash(rows)}),
            layer("point", shared | {"shape": self.shape(rows)}),
        ]


def axis(field: str, title: str, **more: Any) -> Spec:
    """Axis of a quantity. Options for its scale, format and so on go into `more`."""
    scale: Spec = {key: more.pop(key) for key in ("domain", "zero", "scale_type", "nice", "padding") if key in more}
    if "scale_type" in scale:
        scale["type"] = scale.pop("scale_type")
    channel: Spec = {"field": field, "type": "quantitative", "title": title, "axis": more}
    return channel | ({"scale": scale} if scale else {})


def share_axis(field: str, title: str) -> Spec:
    """Axis from 0 to 100%."""
    return axis(field, title, format=".0%", domain=[0, 1])


_WHOLE = "datum.value % 1 ? '' : datum.label"
EPOCH: Spec = axis("epoch", "epoch", labelExpr=_WHOLE, format="d", zero=False, nice=False)


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


def log_axis(field: str, title: str, values: Sequence[float], **more: Any) -> Spec:
    """Logarithmic axis of a quantity that has these values, or a plain one if it can be zero."""
    low, high = min(values), max(values)
    if low <= 0:
        return axis(field, title, domain=[0, high * 1.06 or 1], nice=False, **more)
    domain = [low * 0.94, high * 1.06]
    more |= {"values": log_ticks(*domain), "labelOverlap": "greedy"}
    return axis(field, title, scale_type="log", domain=domain, nice=False, **more)


def error_axis(rows: Sequence[Row], *columns: str) -> Spec:
    """Axis of errors that has room for these columns, by default for the error itself."""
    values = [row[name] for row in rows for name in columns or ("error",)]
    return log_axis("error", "test error", values, format=PERCENT)


def colors(field: str, names: Sequence[Any], range_: Sequence[str] | None = None, **legend: Any) -> Spec:
    """Colour by a field other than the method; without a range, from the scheme dark2."""
    scale = {"domain": list(names)} | ({"scheme": "dark2"} if range_ is None else {"range": list(range_)})
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def layer(mark: str, encoding: Spec, *where: str | Spec, **style: Any) -> Spec:
    """A layer of marks with its style. `where` holds filters, or other transforms, of its rows."""
    transform = [{"filter": one} if isinstance(one, str) else one for one in where]
    return {"mark": {"type": mark} | style, "encoding": encoding} | ({"transform": transform} if transform else {})


def of_methods(layers: Sequence[Spec], *, params: Sequence[Spec] = (), where: Sequence[Spec] = ()) -> Spec:
    """A chart whose methods the reader can hide."""
    return {"params": [HIDDEN, *params], "transform": [SHOWN, *where], "layer": list(layers)}


def of_one(labels: Sequence[str], encoding: Spec, *marks: str) -> Spec:
    """Lines of one method, or other marks, which the reader chooses from a list below the chart."""
    return {
        "params": [choice("chosen", labels, "method")],
        "transform": [{"filter": "datum.run === chosen"}],
        "layer": [layer(mark, encoding) for mark in marks or ("line",)],
    }


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


_LINE = 13  # pixels


def bars(rows: Sequence[Row], x: Spec, color: Spec | None = None, *, where: Sequence[Spec] = (), **more: Spec) -> Spec:
    """Horizontal bars, one for each run. A name has a line for each part of it.

    Args:
        rows: all rows of the figure.
        x: axis of the bars' length.
        color: colour of the parts of a bar, which are stacked in its order; None: bars have no parts.
        where: filters of the rows.
        more: more channels.
    """
    labels = list(dict.fromkeys(row["run"] for row in rows))
    most = max(label.count(", ") + 1 for label in labels)
    looks = {"title": None, "ticks": False, "domain": False, "labelExpr": "split(datum.label, ', ')"}
    y = {"field": "run", "type": "nominal", "sort": labels, "axis": looks | {"labelLineHeight": _LINE}}
    transform, encoding = [*where], {"x": x, "y": y} | more
    if color is not None:
        order = f"indexof({color['scale']['domain']}, datum['{color['field']}'])"
        transform.append({"calculate": order, "as": "order"})
        encoding |= {"color": color, "order": {"field": "order", "type": "quantitative"}}
    height = {"step": max(22, most * _LINE + 6)}
    return {"mark": "bar", "height": height, "transform": transform, "encoding": encoding}
