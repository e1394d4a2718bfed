"""Error against compute, one point per arm: the picture of the compute multiplier."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.charts import HIDDEN, PERCENT, SHOWN, Palette, axis, label_ends, log_ticks, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop.lab.report.runs import split_label
from selective_backprop.lab.study.standing import PLAIN, error_of

READING = (
    "Each point is the end of fully decayed runs, bars span the seeds, and the bold line is plain training: a method "
    "pays where its points lie below or left of that line."
)


def frontiers(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """A chart for each workload."""
    parts: list[Part] = [
        _chart(comparison, palette)
        for comparison in comparisons
        if len({split_label(standing.label)[0] for standing in comparison.standings}) > 1
    ]
    return Section("frontiers", "Error against compute", READING, parts, overview=True)


def arm_rows(comparison: Comparison) -> list[Row]:
    """The end of every arm, cheapest first."""
    rows: list[Row] = []
    for standing in comparison.standings:
        arm, (name, budget) = standing.named.compute, split_label(standing.label)
        rows.append(
            {
                "run": standing.label,
                "method": name,
                "budget": budget,
                "compute": arm.cost,
                "error": arm.error,
                "lowest": min(arm.errors),
                "highest": max(arm.errors),
                "seeds": len(arm.errors),
                "plain": standing.named.method == PLAIN,
            }
        )
    return sorted(rows, key=lambda row: float(row["compute"]))


def _log_axis(name: str, title: str, low: float, high: float, **more: object) -> Spec:
    if low <= 0:
        return axis(name, title, domain=[0, high * 1.06], nice=False, **more)
    domain = [low * 0.94, high * 1.06]
    return axis(
        name,
        title,
        scale_type="log",
        domain=domain,
        nice=False,
        values=log_ticks(*domain),
        labelOverlap="greedy",
        **more,
    )


def _chart(comparison: Comparison, palette: Palette) -> Figure:
    rows = arm_rows(comparison)
    cheapest, dearest = rows[0]["compute"], rows[-1]["compute"]
    x = _log_axis("compute", "compute, in epochs of plain training", cheapest, dearest, format=",.3~f")
    low, high = min(row["lowest"] for row in rows), max(row["highest"] for row in rows)
    y = _log_axis("error", "test error", low, high, format=PERCENT)
    color = palette.color()
    shared = {"x": x, "y": y, "color": color, "detail": {"field": "method"}}
    ends = list({row["method"]: row for row in rows}.values())
    names, height = label_ends(ends, x, y, palette, name="method")
    tips = tooltip(arm="run", error="error|.2%", compute="compute|.2f", seeds="seeds")
    plain, others = [{"filter": "datum.plain"}], [{"filter": "!datum.plain"}]
    spec: Spec = {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "height": height,
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 4.5}, "transform": plain, "encoding": shared},
            {"mark": {"type": "line", "strokeWidth": 1.75}, "transform": others, "encoding": shared},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6},
                "transform": [{"filter": "datum.seeds > 1 && datum.highest > datum.lowest"}],
                "encoding": {"x": x, "y": y | {"field": "lowest"}, "y2": {"field": "highest"}, "color": color},
            },
            {
                "mark": {"type": "point", "size": 80, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": color, "shape": palette.shape(), "tooltip": tips},
            },
            *names,
        ],
    }
    alt = "; ".join(
        f"{standing.label} {error_of(standing.named.compute)} at {standing.named.compute.cost:.2f}"
        for standing in comparison.standings
    )
    return Figure(f"frontier-{comparison.id}", comparison.title, f"Error and epochs of compute: {alt}.", spec, rows)
