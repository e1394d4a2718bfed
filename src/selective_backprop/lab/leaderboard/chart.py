"""Charts: the recommended method on all workloads, and error against compute on each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from selective_backprop.lab.data.decoding import import_extra
from selective_backprop.lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop.lab.leaderboard.board import Board
from selective_backprop.lab.leaderboard.workloads import find_workload
from selective_backprop.lab.report.charts import PERCENT, axis, log_ticks
from selective_backprop.lab.report.figures import Spec
from selective_backprop.lab.report.theme import FONT, INK, LINES, QUIET
from selective_backprop.lab.study.frontier import Bound, Interval

_COLORS = {PLAIN: "#3a4350", RANDOM: "#229988", DEFAULT.name: "#2266cc"}
_BEST, _OTHERS = "#cc6600", "#c3cad3"
_TARGETS = {"middle": "at the error of plain training's middle length", "lossless": "within 2% of its best error"}
_WIDEST = 4.0
"""Multipliers beyond this factor are drawn at the chart's edge."""
_MARKS = {Bound.EXACT: "circle", Bound.LESS: "triangle-left", Bound.MORE: "triangle-right"}


def overview_chart(boards: Sequence[Board], arm: str = DEFAULT.name) -> bytes:
    """SVG with an arm's multiplier and its interval on every workload. Triangles are bounds."""
    rows = []
    for one in boards:
        place = one.place(arm)
        for target, title in _TARGETS.items():
            if place is not None and (interval := place.against_both(target)) is not None:
                rows.append({"workload": one.workload, "target": title} | _drawn(interval))
    names = [one.workload for one in boards]
    svg: str = import_extra("vl_convert").vegalite_to_svg(_overview(rows, names))
    return svg.encode()


def _drawn(interval: Interval) -> Spec:
    low, high = interval.low or interval.multiple, interval.high or interval.multiple
    values = {"low": low.value, "multiple": interval.multiple.value, "high": high.value}
    inside = {name: min(max(value, 1 / _WIDEST), _WIDEST) for name, value in values.items()}
    return inside | {"bound": interval.multiple.bound.value}


def _overview(rows: list[Spec], names: list[str]) -> Spec:
    title = "compute multiplier M, on a logarithmic scale: to the right of 1 less compute is needed"
    ends = [row[name] for row in rows for name in ("low", "high")]
    widest = max(abs(math.log(value)) for value in ends or [2.0])
    domain = [math.exp(-1.05 * widest), math.exp(1.05 * widest)]
    x = axis(
        "multiple", title, scale_type="log", domain=domain, nice=False, values=[0.25, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 4]
    )
    y = {"field": "workload", "type": "nominal", "sort": names, "title": None, "axis": {"grid": False, "ticks": False}}
    scale = {"domain": list(_TARGETS.values()), "range": [_COLORS[DEFAULT.name], _BEST]}
    legend = {"title": None, "orient": "top", "labelLimit": 400}
    shapes = {"domain": [bound.value for bound in _MARKS], "range": list(_MARKS.values())}
    shared = {
        "y": y,
        "yOffset": {"field": "target", "type": "nominal", "sort": list(_TARGETS.values())},
        "color": {"field": "target", "type": "nominal", "scale": scale, "legend": legend},
    }
    return _framed(560, 34 * max(len(names), 1), rows) | {
        "layer": [
            {"mark": {"type": "rule", "color": QUIET["light"]}, "encoding": {"x": {"datum": 1}}},
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": shared | {"x": x | {"field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": shared | {"x": x, "shape": {"field": "bound", "scale": shapes, "legend": None}},
            },
        ],
    }


def _framed(width: int, height: int, rows: list[Spec]) -> Spec:
    return {
        "width": width,
        "height": height,
        "background": "white",
        "padding": 12,
        "data": {"values": rows},
        "config": {
            "font": FONT,
            "view": {"stroke": None},
            "axis": {"labelColor": QUIET["light"], "titleColor": QUIET["light"], "gridColor": LINES["light"]},
        },
    }


def frontier_chart(one: Board) -> bytes:
    """SVG with plain training, random subsets, the recommended method and the best of the others in colour."""
    names = [place.arm for place in one.places]
    best = next((name for name in names if name not in _COLORS), None)
    shown = [name for name in (*_COLORS, best) if name in names]
    rows = [
        {"arm": place.arm, "error": point.error, "compute": point.cost, "others": place.arm not in shown}
        for place in one.places
        for point in place.points
    ]
    points = [point for place in one.places for point in place.points]
    values = [point.cost for point in points], [point.error for point in points]
    spec = _spec(rows, shown, [_COLORS.get(name, _BEST) for name in shown], values) | {
        "title": {"text": find_workload(one.workload).title, "anchor": "start", "color": INK["light"], "fontSize": 13}
    }
    svg: str = import_extra("vl_convert").vegalite_to_svg(spec)
    return svg.encode()


def _spec(rows: list[Spec], shown: list[str], colors: list[str], values: tuple[list[float], list[float]]) -> Spec:
    channels = []
    titles = ("compute, in epochs of plain training", "test error")
    for name, title, found, form in zip(("compute", "error"), titles, values, (",.3~f", PERCENT), strict=True):
        domain = [0.95 * min(found), 1.05 * max(found)]
        channels.append(
            axis(name, title, scale_type="log", domain=domain, nice=False, values=log_ticks(*domain), format=form)
        )
    x, y = channels
    color = {"field": "arm", "scale": {"domain": shown, "range": colors}, "legend": {"title": None, "orient": "bottom"}}
    line = {"type": "line", "point": {"size": 45, "filled": True}}
    return _framed(460, 300, rows) | {
        "layer": [
            {
                "transform": [{"filter": "datum.others"}],
                "mark": {"type": "line", "color": _OTHERS, "strokeWidth": 1.2},
                "encoding": {"x": x, "y": y, "detail": {"field": "arm"}},
            },
            {
                "transform": [{"filter": "!datum.others"}],
                "mark": line | {"strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": color},
            },
        ],
    }
