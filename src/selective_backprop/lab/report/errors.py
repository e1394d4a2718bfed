"""Section 2: test error against steps, seconds and compute, and the runs that no other beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from selective_backprop.lab.report.charts import (
    HIDDEN,
    PERCENT,
    SHOWN,
    Palette,
    axis,
    is_flat,
    label_ends,
    log_ticks,
    tooltip,
)
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop.lab.report.runs import running_means, split_label
from selective_backprop.lab.study.curves import AXES, Axis, pareto_frontier

READING = (
    "Lower and further left is better: a curve that reaches the same error further left got there with less; lines are "
    "means over seeds, shades span the seeds, errors are on a logarithmic scale, and seconds leave out evaluation."
)
_X = {
    "steps": ("Test error by training step", "training iterations"),
    "seconds": ("Test error by time", "seconds of training"),
    "compute": ("Test error by compute", "compute, in epochs of plain training"),
}


def errors(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """Curves and frontiers of each comparison."""
    parts: list[Part] = []
    for comparison in comparisons:
        rows = curve_rows(comparison)
        last = "; ".join(f"{row['run']} {row['error']:.2%}" for row in rows if row["last"])
        for column, (title, label) in _X.items():
            if is_flat(rows, "error") or (column == "seconds" and not comparison.same_hardware_by_seed):
                continue
            figure = f"error-by-{column}-{comparison.id}"
            parts.append(
                Figure(
                    figure, title, f"Final errors: {last}.", _curves(column, label, rows, palette), rows, comparison.id
                )
            )
        if len(comparison.by_label) > 1:
            axes = [by for by in AXES if by == "compute" or comparison.same_hardware_by_seed]
            parts += [_frontier(comparison, by, rows, palette) for by in axes]
            if table := _shares(comparison, axes):
                parts.append(table)
    return Section("errors", "Error in the course of training", READING, parts)


def curve_rows(comparison: Comparison) -> list[Row]:
    """Rows with cost and errors after each epoch of each label, as means over seeds with their span."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        name, budget = split_label(label)
        curve, steps = comparison.mean_curve(label), running_means(runs, lambda record: record["batches"])
        length = len(curve.errors)
        seeds = [run.curve.errors[-length:] for run in runs]
        for i in range(length):
            at = [errors[i] for errors in seeds]
            rows.append(
                {
                    "run": label,
                    "method": name,
                    "budget": budget,
                    "epoch": i + 1,
                    "steps": steps[i],
                    "seconds": curve.seconds[i],
                    "compute": curve.compute[i],
                    "error": curve.errors[i],
                    "lowest": min(at),
                    "highest": max(at),
                    "seeds": len(runs),
                    "last": i == length - 1,
                }
            )
    return rows


def error_axis(rows: Sequence[Row]) -> Spec:
    """Axis of errors, logarithmic unless an error is zero."""
    low, high = min(row["error"] for row in rows), max(row["error"] for row in rows)
    if low <= 0:
        return axis("error", "test error", format=PERCENT, domain=[0, high * 1.06 or 1], nice=False)
    domain = [low * 0.94, high * 1.06]
    return axis(
        "error",
        "test error",
        scale_type="log",
        domain=domain,
        nice=False,
        values=log_ticks(*domain),
        labelOverlap="greedy",
        format=PERCENT,
    )


_TIP = tooltip(
    run="run",
    epoch="epoch",
    error="error|.2%",
    lowest_of_a_seed="lowest|.2%",
    highest_of_a_seed="highest|.2%",
    iterations="steps|,.0f",
    seconds="seconds|,.1f",
    compute="compute|.2f",
)


def _curves(column: str, label: str, rows: Sequence[Row], palette: Palette) -> Spec:
    x, y = axis(column, label, format=",.3~f"), error_axis(rows)
    shared = {"x": x, "detail": {"field": "run"}, "color": palette.color()}
    floor = y["scale"]["domain"][0]
    names, height = label_ends([row for row in rows if row["last"]], x, y, palette)
    band: Spec = {
        "mark": {"type": "area", "opacity": 0.12, "clip": True},
        # A seed with zero error has no place on a logarithmic axis, so the shade ends where the axis does.
        "transform": [{"filter": "datum.seeds > 1"}, {"calculate": f"max(datum.lowest, {floor})", "as": "floor"}],
        "encoding": shared | {"y": y | {"field": "floor"}, "y2": {"field": "highest"}},
    }
    return {
        "params": [HIDDEN],
        "transform": [SHOWN],
        "height": height,
        "layer": [
            *([band] if any(row["seeds"] > 1 for row in rows) else []),
            {"mark": "line", "encoding": shared | {"y": y, "strokeDash": palette.dash()}},
            {"mark": "point", "encoding": shared | {"y": y, "shape": palette.shape(), "tooltip": _TIP}},
            *names,
        ],
    }


def frontier_shares(comparison: Comparison, by: Axis) -> dict[str, float]:
    """Each method's share of the points on the frontier of mean curves, from 1.4x of the final error on.

    The many points before are of the first epochs, in which no method has done anything yet. The final error is that of
    the reference, or else the lowest.
    """
    curves = {label: comparison.mean_curve(label) for label in comparison.by_label}
    if comparison.reference is not None:
        final = curves[comparison.reference].errors[-1]
    else:
        final = min(curve.errors[-1] for curve in curves.values())
    points = [point for point in pareto_frontier(curves, by) if point[2] <= STARTS_AT * final]
    counts = Counter(split_label(label)[0] for label, _, _ in points)
    names = dict.fromkeys(split_label(label)[0] for label in comparison.by_label)
    return {name: counts[name] / len(points) for name in names} if points else {}


STARTS_AT = 1.4
"""Points of the frontier count from this multiple of the final error on."""


def _shares(comparison: Comparison, axes: Sequence[Axis]) -> Table | None:
    shares = {by: frontier_shares(comparison, by) for by in reversed(axes)}
    if not all(shares.values()):
        return None
    names = sorted(shares["compute"], key=lambda name: -shares["compute"][name])
    cells = [[name, *(f"{shares[by][name]:.0%}" for by in shares)] for name in names]
    title = "Share of the points on the frontier"
    note = f"Points from {STARTS_AT}x of the final error on."
    return Table(f"frontier-shares-{comparison.id}", title, ["method", *shares], cells, comparison.id, note=note)


def _frontier(comparison: Comparison, by: Axis, curves: Sequence[Row], palette: Palette) -> Figure:
    on_it = set(pareto_frontier({label: comparison.mean_curve(label) for label in comparison.by_label}, by))
    rows = [
        {key: row[key] for key in ("run", "method", "budget", "epoch", by, "error")}
        | {"frontier": (row["run"], row[by], row["error"]) in on_it}
        for row in curves
    ]
    shares = frontier_shares(comparison, by).items()
    alt = "Share of the frontier: " + "; ".join(f"{name} {share:.0%}" for name, share in shares)
    _, label = _X[by]
    encoding = {"x": axis(by, label, format=",.3~f"), "y": error_axis(rows), "color": palette.color()}
    on_frontier = [{"filter": "datum.frontier"}]
    tips = tooltip(run="run", epoch="epoch", error="error|.2%", cost=f"{by}|.4~g")
    spec = {
        "params": [HIDDEN],
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1, "color": "#8a94a3"},
                "transform": on_frontier,
                "encoding": {key: encoding[key] for key in ("x", "y")},
            },
            {
                "mark": {"type": "point", "opacity": 0.3, "size": 16},
                "transform": [SHOWN, {"filter": "!datum.frontier"}],
                "encoding": encoding | {"shape": palette.shape(), "tooltip": tips},
            },
            {
                "mark": {"type": "point", "size": 80, "opacity": 1},
                "transform": [SHOWN, *on_frontier],
                "encoding": encoding | {"shape": palette.shape(), "tooltip": tips},
            },
        ],
    }
    title = f"Pareto frontier of error and {by}"
    note = "Large points: nothing cheaper is better."
    return Figure(f"pareto-{by}-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)
