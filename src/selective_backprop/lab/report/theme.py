"""Colours and type of the page and of exported charts, light and dark."""

from __future__ import annotations

from selective_backprop.lab.report.figures import Spec

FONT = "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"

# The first is Traditional's. Told apart by readers with any kind of colour blindness: hues after Okabe and Ito 2008,
# with lightness that has a contrast of 3 or more to the background.
METHODS = {
    "light": ["#5f6b7a", "#0072b2", "#d55e00", "#00805f", "#b4468c", "#a87400", "#3f97c9", "#7a4fc0", "#8c4b2f"],
    "dark": ["#a3adba", "#56a8e8", "#ff8a3d", "#2fc398", "#f08cc6", "#e8b33c", "#9bd6f7", "#b9a0f7", "#dba183"],
}
INK = {"light": "#1d232b", "dark": "#e6e9ee"}
QUIET = {"light": "#5a6472", "dark": "#a0a9b6"}
LINES = {"light": "#e3e7ec", "dark": "#2f3742"}
PAPER = {"light": "#ffffff", "dark": "#14181e"}
# Light to dark in one hue, for what has an order (epochs).
ORDER = {"light": ["#9cc7e6", "#3f8fc4", "#0b3f66"], "dark": ["#2d6a99", "#64aee0", "#cfe8fa"]}
THEMES = ("light", "dark")


def config(theme: str) -> Spec:
    """For Vega-Lite."""
    ink, quiet, lines = INK[theme], QUIET[theme], LINES[theme]
    label = {"labelFont": FONT, "titleFont": FONT, "labelColor": quiet, "titleColor": quiet, "titleFontWeight": 500}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "range": {"category": METHODS[theme], "ordinal": ORDER[theme]},
        "axis": label
        | {
            "gridColor": lines,
            "domainColor": quiet,
            "tickColor": quiet,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titlePadding": 8,
            "labelOverlap": True,
            "labelSeparation": 8,
            "labelLimit": 200,
            "tickCount": 6,
        },
        "axisX": {"grid": False},
        "axisY": {
            "domain": False,
            "ticks": False,
            "titleAlign": "left",
            "titleAngle": 0,
            "titleAnchor": "end",
            "titleY": -14,
            "titleX": 0,
            "titlePadding": 0,
        },
        "legend": label
        | {
            "orient": "top",
            "offset": 30,
            "title": None,
            "labelFontSize": 12,
            "labelLimit": 240,
            "symbolStrokeWidth": 2,
        },
        "line": {"strokeWidth": 2},
        "point": {"filled": True, "size": 28},
        "rule": {"color": quiet},
        "text": {"color": ink, "font": FONT, "fontSize": 11},
        "title": {"color": ink, "font": FONT, "anchor": "start", "fontSize": 14, "subtitleColor": quiet},
    }
