"""Colours and type of the page and of exported charts, light and dark."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop_lab.report.figures import Spec

FONT = "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"

STYLES: dict[str, tuple[str, str, str]] = {
    "traditional": ("#3a4350", "#c9d1db", "circle"),
    "repeated_random": ("#229988", "#007755", "square"),
    "ledger_backprop": ("#2266cc", "#33aaee", "triangle-up"),
    "ledger_percentile": ("#110022", "#ffffff", "square"),
    "selective_backprop": ("#cc6600", "#cc9977", "diamond"),
    "stale_selective_backprop": ("#ff4488", "#cc0088", "triangle-down"),
    "infobatch": ("#336644", "#44ee11", "cross"),
    "kath18": ("#2299ee", "#668811", "triangle-right"),
    "random_backprop": ("#0011bb", "#7744ff", "triangle-left"),
    "composer_backprop": ("#661100", "#bb7788", "diamond"),
    "diet": ("#bb1100", "#cc2255", "square"),
    "distance_backprop": ("#223366", "#227799", "triangle-up"),
    "expected_selective_backprop": ("#775588", "#bbccff", "triangle-down"),
    "predicted_selective_backprop": ("#998855", "#bbee88", "circle"),
    "recorded_backprop": ("#3311ff", "#3388ff", "cross"),
    "top_k": ("#9988bb", "#44bb00", "triangle-right"),
}
"""Light colour, dark colour and marker of every method, the same on every page.

Any two are told apart in ordinary sight, deuteranopia and protanopia, and have a contrast of 3 or more to the paper.
"""
OTHER_METHOD = ("#444499", "#55aabb", "triangle-left")
"""For methods that are not in the table."""


def color_of(method: str, theme: str) -> str:
    """
    >>> color_of("traditional", "light")
    '#3a4350'
    """
    return STYLES.get(method, OTHER_METHOD)[THEMES.index(theme)]


def shape_of(method: str) -> str:
    """
    >>> shape_of("traditional"), shape_of("one's own")
    ('circle', 'triangle-left')
    """
    return STYLES.get(method, OTHER_METHOD)[2]


# Greys, and amber for selection, the one to look for: no method has these.
PHASES = ["#d9a400", "#7d8ea3", "#55637a", "#aeb9c6", "#cfd6de"]
ACCENT = {"light": "#0b63a5", "dark": "#7cc0f5"}
# Background and edge of the matrix's cells, by what is known.
VERDICTS = {
    "better": {"light": "#d3ecff", "dark": "#123a57"},
    "same": {"light": "#eef0f3", "dark": "#262d37"},
    "worse": {"light": "#ffe0cc", "dark": "#56300f"},
    "not_checked": {"light": "#ffffff", "dark": "#14181e"},
}
INK = {"light": "#1d232b", "dark": "#e6e9ee"}
QUIET = {"light": "#5a6472", "dark": "#a0a9b6"}
LINES = {"light": "#e3e7ec", "dark": "#2f3742"}
PAPER = {"light": "#ffffff", "dark": "#14181e"}
# Light to dark in one hue, for what has an order (epochs).
ORDER = {"light": ["#9cc7e6", "#3f8fc4", "#0b3f66"], "dark": ["#2d6a99", "#64aee0", "#cfe8fa"]}
THEMES = ("light", "dark")


def config(theme: str, methods: Sequence[str]) -> Spec:
    """For Vega-Lite. `methods` are those of the page, in the order of its colour scales."""
    ink, quiet, lines = INK[theme], QUIET[theme], LINES[theme]
    label = {"labelFont": FONT, "titleFont": FONT, "labelColor": quiet, "titleColor": quiet, "titleFontWeight": 500}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "range": {"category": [color_of(method, theme) for method in methods], "ordinal": ORDER[theme]},
        "lineBreak": "\n",
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
            "labelLimit": 0,
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
        | {"orient": "top", "offset": 30, "title": None, "labelFontSize": 12, "labelLimit": 0, "symbolStrokeWidth": 2}
        | {"columns": 4, "symbolOpacity": 1, "layout": {"top": {"direction": "vertical", "anchor": "start"}}},
        "line": {"strokeWidth": 2},
        "point": {"filled": True, "size": 28, "opacity": 1, "tooltip": True},
        "bar": {"color": PHASES[2], "tooltip": True},
        "rule": {"color": quiet},
        "text": {"color": ink, "font": FONT, "fontSize": 11},
        "title": {"color": ink, "font": FONT, "anchor": "start", "fontSize": 14, "subtitleColor": quiet},
    }
