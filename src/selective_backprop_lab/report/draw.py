"""Draw lines and bars as SVG. Colours are CSS variables of the page, so that one picture serves light and dark."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

# Light colour, dark colour and marker of every method, the same on every page. Any two are told apart in ordinary
# sight, deuteranopia and protanopia, and have a contrast of 3 or more to the paper.
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
    "top_k": ("#9988bb", "#44bb00", "triangle-right"),
    "proxy_backprop": ("#aa0033", "#eeff66", "triangle-up"),
    "matched_random": ("#33aa33", "#bbffcc", "square"),
}
OTHER_METHOD = ("#444499", "#55aabb", "triangle-left")
"""For methods that are not in the table."""
# The page's colours: its ground, text and lines; cells by what is known; phases of time, with amber for selection,
# which no method has; light to dark in one hue for what has an order; others for what is no method.
_NAMES = "paper ink quiet lines accent better same worse not_checked"
_LIGHT = "#ffffff #1d232b #5a6472 #e3e7ec #0b63a5 #d3ecff #eef0f3 #ffe0cc #ffffff #9cc7e6 #3f8fc4 #0b3f66"
_DARK = "#14181e #e6e9ee #a0a9b6 #2f3742 #7cc0f5 #123a57 #262d37 #56300f #14181e #2d6a99 #64aee0 #cfe8fa"
PHASES = ["#d9a400", "#7d8ea3", "#55637a", "#aeb9c6", "#cfd6de"]
KINDS = ["#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e"]
COLORS = dict(
    zip(f"{_NAMES} order0 order1 order2".split(), zip(_LIGHT.split(), _DARK.split(), strict=True), strict=True)
)
"""The page's colours by name, light and dark."""
DASHES = ("", "6 3", "2 2", "10 3 2 3", "10 5", "1 4", "5 1", "3 6")
_MARKERS = {
    "": "",
    "square": "M-3.2-3.2h6.4v6.4h-6.4z",
    "diamond": "M0-4.6L4.6 0L0 4.6L-4.6 0z",
    "triangle-up": "M0-4.4L4.2 3.4H-4.2z",
    "triangle-down": "M0 4.4L4.2-3.4H-4.2z",
    "triangle-left": "M-4.4 0L3.4-4.2V4.2z",
    "triangle-right": "M4.4 0L-3.4-4.2V4.2z",
    "cross": "M-1.5-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9z",
    "circle": "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
}
_WIDTH, _HEIGHT, _RIGHT, _MANY = 400, 230, 20, 60
_FONT = "system-ui, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Axis:
    """A scale for a column of a table. Its ends come from the values unless they are given; `words` name 0, 1, ..."""

    column: str
    title: str
    log: bool = False
    percent: bool = False
    ends: tuple[float, float] | None = None
    words: Sequence[str] = ()
    whole: bool = False

    def span(self, values: Sequence[float]) -> tuple[float, float, list[tuple[float, str]]]:
        """The ends of the axis for these values, and its ticks."""
        low, high = self.ends or (min(values), max(values))
        if self.words:
            return -0.35, len(self.words) - 0.65, list(enumerate(self.words))
        if self.log:
            low, high = low * 0.94, high * 1.06
        elif self.ends is None:
            room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
            low, high = low - room, high + room
        ticks = log_ticks(low, high) if self.log else _ticks(low, high, 1 if self.whole else 0)
        return low, high, [(tick, self.word(tick, 4)) for tick in ticks]

    def word(self, value: float, digits: int = 3) -> str:
        """A value as it stands at a tick."""
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
        return f"{100 * value:.{digits}g}%" if self.percent else number


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of a logarithmic axis: the coarsest set that has three in the span.

    >>> log_ticks(0.06, 0.7), log_ticks(0.06, 0.35), log_ticks(0.31, 0.36)
    ([0.1, 0.2, 0.5], [0.07, 0.1, 0.2, 0.3], [0.31, 0.32, 0.33, 0.34, 0.35, 0.36])
    """
    for steps in ((1,), (1, 2, 5), (1, 2, 3, 5, 7), range(1, 10)):
        ticks = [float(f"{step * 10.0**power:.6g}") for power in range(-12, 13) for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside
    return _ticks(low, high)


def _ticks(low: float, high: float, least: float = 0) -> list[float]:
    """At most six round numbers, evenly spaced."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = max(least, next(times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= 5.5))
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Line:
    """A line with its points.

    Args:
        x, y: its points.
        name: what its colour means, for the legend; methods can be hidden by it.
        style: what its dashes mean, for the legend; lengths of methods can be hidden by it.
        marker: shape of its points; "" for none.
        low, high: ends of a bar at each point, or of a shade.
        joined: whether the points are joined.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    color: str = "var(--quiet)"
    style: str = ""
    dash: str = ""
    marker: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    shade: bool = False
    width: float = 2
    joined: bool = True
    opacity: float = 1


def chart(lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Lines over two axes, with a legend above them."""
    values = [value for line in lines for value in (*line.y, *line.high)]
    if y.log and min(values) <= 0:  # errors of zero have no place on a logarithmic axis
        y = replace(y, log=False, ends=(0, max(values) * 1.06 or 1))
    if y.log:
        values += [value for line in lines for value in line.low if value > 0]
    x_low, x_high, x_ticks = x.span([value for line in lines for value in line.x])
    y_low, y_high, y_ticks = y.span(values)
    head, key = _legend(lines)
    top, left = head + 26, 16 + max([_long(word) for _, word in y_ticks], default=0)
    bottom, many = top + _HEIGHT, sum(len(line.x) for line in lines if line.marker) > _MANY

    def across(value: float) -> float:
        return left + (_WIDTH - left - _RIGHT) * _at(value, x_low, x_high, x.log)

    def down(value: float) -> float:
        return bottom - _HEIGHT * _at(value, y_low, y_high, y.log)

    drawn = [key, _text(0, top - 12, y.title), _text(_WIDTH - _RIGHT, bottom + 36, x.title, "end")]
    for value, word in y_ticks:
        drawn.append(f'<path d="M{left:.1f} {down(value):.1f}H{_WIDTH - _RIGHT}" stroke="var(--lines)"/>')
        drawn.append(_text(left - 6, down(value) + 4, word, "end"))
    drawn.append(f'<path d="M{left:.1f} {bottom:.1f}H{_WIDTH - _RIGHT}" stroke="var(--quiet)"/>')
    free = -math.inf
    for value, word in x_ticks:
        at, half = across(value), _long(word) / 2
        drawn.append(f'<path d="M{at:.1f} {bottom:.1f}v4" stroke="var(--quiet)"/>')
        if free < at - half and at + half <= _WIDTH:
            drawn.append(_text(at, bottom + 18, word, "middle"))
            free = at + half + 6
    for line in lines:
        drawn.append(f'<g data-method="{escape(line.name)}" data-budget="{escape(line.style)}">')
        points = [(across(a), down(b)) for a, b in zip(line.x, line.y, strict=True)]
        ends = [(at, down(low), down(high)) for (at, _), low, high in zip(points, line.low, line.high, strict=False)]
        color = f'stroke="{line.color}" stroke-opacity="{line.opacity}"'
        if line.shade:
            edge = _path([(at, high) for at, _, high in ends] + [(at, low) for at, low, _ in reversed(ends)])
            drawn.append(f'<path d="M{edge}z" fill="{line.color}" fill-opacity=".13"/>')
        elif bars := "".join(f"M{at:.1f} {low:.1f}V{high:.1f}" for at, low, high in ends if low - high > 0.5):
            drawn.append(f'<path d="{bars}" {color} stroke-width="1.5"/>')
        if line.joined and len(points) > 1:
            looks = f'fill="none" stroke-width="{line.width}" stroke-linejoin="round" stroke-dasharray="{line.dash}"'
            drawn.append(f'<path d="M{_path(points)}" {color} {looks}/>')
        for (a, b), at, value in zip(points, line.x, line.y, strict=True) if line.marker else ():
            place = f'transform="translate({a:.1f} {b:.1f}) scale({0.6 if many else 1})"'
            said = f"<title>{escape(line.name)} {escape(line.style)}: {x.word(at)}, {y.word(value)}</title>"
            mark = f'<path {place} d="{_MARKERS[line.marker]}" fill="{line.color}" fill-opacity="{line.opacity}"'
            drawn.append(f"{mark}/>" if many or x.words else f"{mark}>{said}</path>")
        drawn.append("</g>")
    return _svg("".join(drawn), bottom + 44)


def _at(value: float, low: float, high: float, log: bool) -> float:
    """Where a value is between two ends, from 0 to 1; values beyond them are at the ends."""
    if log:
        low, high, value = math.log(low), math.log(high), math.log(max(value, low / 2))
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _legend(lines: Sequence[Line]) -> tuple[float, str]:
    """The height of the legend, and its SVG: what colours and markers mean, then what dashes mean."""
    named = {line.name: (line.color, line.marker, "" if line.joined else None) for line in lines if line.name}
    styles = {line.style: ("var(--quiet)", "", line.dash) for line in lines if line.style}
    entries = [*named.items(), *(styles.items() if len({line.style for line in lines}) > 1 else ())]
    x, y, drawn = 0.0, 14.0, []
    for words, (color, marker, dash) in entries:
        for number, part in enumerate(textwrap.wrap(words, 46)):
            if x and x + 28 + _long(part) > _WIDTH:
                x, y = 0.0, y + 18
            if not number:
                drawn.append(f'<g transform="translate({x:.1f} {y - 4:.1f})">')
                line = f'<path d="M0 0h20" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
                mark = f'<path d="{_MARKERS[marker]}" fill="{color}" transform="translate(10 0)"/>'
                drawn.append(f"{'' if dash is None else line}{mark}</g>")
            drawn.append(_text(x + 26, y, part, color="var(--ink)"))
            x += 40 + _long(part)
    return y + 4 if entries else 0.0, "".join(drawn)


def bars(rows: Sequence[tuple[str, Mapping[str, Any], bool]], colors: Mapping[str, str], axis: Axis) -> str:
    """A bar under the name of each row, its parts stacked; pale where the row says so.

    Args:
        rows: name, values by part, and whether the bar is pale.
        colors: a CSS colour for every part, in the order of the parts.
        axis: how the sum is written.
    """
    named = [Line((), (), name, color, marker="square", joined=False) for name, color in colors.items()]
    y, key = _legend(named) if len(colors) > 1 else (0.0, "")
    sums = [sum(parts[kind] for kind in colors) for _, parts, _ in rows]
    drawn, most = [key], max(sums) or 1.0
    for (name, parts, pale), whole in zip(rows, sums, strict=True):
        for part in textwrap.wrap(name, 50):
            y += 17
            drawn.append(_text(0, y, part, color="var(--ink)"))
        x = 0.0
        for kind, color in colors.items():
            size, looks = parts[kind] * (_WIDTH - 70) / most, f'fill="{color}" fill-opacity="{0.4 if pale else 1}"'
            drawn.append(f'<rect x="{x:.1f}" y="{y + 5:.1f}" width="{size:.1f}" height="11" {looks}/>')
            x += size
        drawn.append(_text(x + 6, y + 15, axis.word(whole)))
        y += 20
    return _svg("".join(drawn) + _text(0, y + 16, axis.title), y + 24)


def _text(x: float, y: float, words: str, anchor: str = "start", color: str = "var(--quiet)") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{escape(words)}</text>'


def _long(words: str) -> float:
    """About how wide a text is, in the units of the picture."""
    return sum(7.6 if ord(letter) < 0x2E80 else 13.5 for letter in words)


def _svg(inside: str, height: float) -> str:
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}"'
    return f'<svg {box} font-family="{_FONT}" font-size="13">{inside}</svg>'


def alone(svg: str, methods: Sequence[str] = ()) -> str:
    """The same picture as a file of its own: on white, with the light colours in place of the page's variables."""
    light = {name: pair[0] for name, pair in variables(methods).items()}
    svg = re.sub(r"var\(--(\w+)\)", lambda found: light[found[1]], svg)
    return svg.replace(">", ' width="480"><rect width="100%" height="100%" fill="#ffffff"/>', 1)


def styles_of(methods: Sequence[str]) -> list[tuple[str, str, str]]:
    """Colours and marker of each method of a page, by full names; the second one of a name looks unknown."""
    return [STYLES.get("" if name in methods[:i] else name, OTHER_METHOD) for i, name in enumerate(methods)]


def variables(methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """All colours of a page, light and dark; `m0`, `m1`, ... are those of its methods."""
    fixed = [(f"phase{i}", (one, one)) for i, one in enumerate(PHASES)]
    fixed += [(f"kind{i}", (one, one)) for i, one in enumerate(KINDS)]
    return COLORS | dict(fixed) | {f"m{i}": style[:2] for i, style in enumerate(styles_of(methods))}
