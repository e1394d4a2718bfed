"""A chart of a workload: error against compute, a line per arm."""

from __future__ import annotations

from selective_backprop.lab.data.decoding import import_extra
from selective_backprop.lab.leaderboard.arms import DEFAULT, PLAIN, RANDOM
from selective_backprop.lab.leaderboard.standing import Standing
from selective_backprop.lab.leaderboard.workloads import find_workload
from selective_backprop.lab.report.charts import PERCENT, axis, log_ticks
from selective_backprop.lab.report.figures import Spec
from selective_backprop.lab.report.theme import FONT, INK, LINES, QUIET

_COLORS = {PLAIN: "#3a4350", RANDOM: "#229988", DEFAULT.name: "#2266cc"}
_BEST, _OTHERS = "#cc6600", "#c3cad3"


def frontier_chart(one: Standing) -> bytes:
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
    return {
        "width": 460,
        "height": 300,
        "background": "white",
        "padding": 12,
        "data": {"values": rows},
        "config": {
            "font": FONT,
            "view": {"stroke": None},
            "axis": {"labelColor": QUIET["light"], "titleColor": QUIET["light"], "gridColor": LINES["light"]},
        },
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
