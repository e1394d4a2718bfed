"""Test error: of every arm against its compute, and in the course of training."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.charts import (
    PERCENT,
    Palette,
    axis,
    is_flat,
    label_ends,
    layer,
    log_axis,
    of_methods,
    tooltip,
)
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop.lab.report.runs import method_and_budget, names_of, running_means
from selective_backprop.lab.study.standing import PLAIN, error_of

FRONTIERS = (
    "Each point is the end of fully decayed runs, bars span the seeds, and the bold line is plain training: a method "
    "pays where its points lie below or left of that line."
)
CURVES = (
    "Lower and further left is better: a curve that reaches the same error further left got there with less; lines are "
    "means over seeds, shades span the seeds, errors are on a logarithmic scale, and seconds leave out evaluation."
)


def frontiers(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """A chart of error against compute for each workload, one point per arm."""
    parts: list[Part] = [
        _frontier(comparison, palette)
        for comparison in comparisons
        if len({method_and_budget(runs.label)[0] for runs in comparison.arms}) > 1
    ]
    return Section("frontiers", "Error against compute", FRONTIERS, parts, overview=True)


def arm_rows(comparison: Comparison) -> list[Row]:
    """The end of every arm, cheapest first."""
    rows: list[Row] = []
    for runs in comparison.arms:
        arm = runs.compute
        spread = {"lowest": min(arm.errors), "highest": max(arm.errors), "seeds": len(arm.errors)}
        row = names_of(runs.label) | {"compute": arm.cost, "error": arm.error}
        rows.append(row | spread | {"plain": runs.method == PLAIN})
    return sorted(rows, key=lambda row: float(row["compute"]))


def _frontier(comparison: Comparison, palette: Palette) -> Figure:
    rows = arm_rows(comparison)
    cheapest, dearest = rows[0]["compute"], rows[-1]["compute"]
    x = log_axis("compute", "compute, in epochs of plain training", cheapest, dearest, format=",.3~f")
    y = error_axis(rows, "lowest", "highest")
    lines = {"x": x, "y": y, "color": palette.color(), "detail": {"field": "method"}}
    seeds = {"x": x, "y": y | {"field": "lowest"}, "y2": {"field": "highest"}, "color": palette.color()}
    tips = tooltip(arm="run", error="error|.2%", compute="compute|.2f", seeds="seeds")
    ends, height = label_ends(list({row["method"]: row for row in rows}.values()), x, y, palette, name="method")
    layers = [
        layer("line", lines, "datum.plain", strokeWidth=4.5),
        layer("line", lines, "!datum.plain", strokeWidth=1.75),
        layer("rule", seeds, "datum.seeds > 1 && datum.highest > datum.lowest", strokeWidth=1.5, opacity=0.6),
        layer("point", lines | {"shape": palette.shape(), "tooltip": tips}, size=80, opacity=1),
    ]
    alt = "; ".join(f"{runs.label} {error_of(runs.compute)} at {runs.compute.cost:.2f}" for runs in comparison.arms)
    spec = of_methods([*layers, *ends], height=height)
    return Figure(f"frontier-{comparison.id}", comparison.title, f"Error and epochs of compute: {alt}.", spec, rows)


_X = {
    "steps": ("Test error by training step", "training iterations"),
    "seconds": ("Test error by time", "seconds of training"),
    "compute": ("Test error by compute", "compute, in epochs of plain training"),
}


def errors(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """Curves of each workload."""
    parts: list[Part] = []
    for comparison in comparisons:
        rows = curve_rows(comparison)
        alt = "Final errors: " + "; ".join(f"{row['run']} {row['error']:.2%}" for row in rows if row["last"])
        for column, (title, label) in _X.items():
            if is_flat(rows, "error") or (column == "seconds" and not comparison.same_hardware):
                continue
            spec = _curves(axis(column, label, format=",.3~f"), rows, palette)
            parts.append(Figure(f"error-by-{column}-{comparison.id}", title, f"{alt}.", spec, rows, comparison.id))
    return Section("errors", "Error in the course of training", CURVES, parts)


def curve_rows(comparison: Comparison) -> list[Row]:
    """Rows with cost and errors after each epoch of each label, as means over seeds with their span."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        curve, steps = comparison.mean_curve(label), running_means(runs, lambda record: record["batches"])
        length = len(curve.errors)
        seeds = [run.curve.errors[-length:] for run in runs]
        for i in range(length):
            at = [errors[i] for errors in seeds]
            costs = {"steps": steps[i], "seconds": curve.seconds[i], "compute": curve.compute[i]}
            spread = {"error": curve.errors[i], "lowest": min(at), "highest": max(at), "seeds": len(runs)}
            rows.append(names_of(label) | {"epoch": i + 1} | costs | spread | {"last": i == length - 1})
    return rows


def error_axis(rows: Sequence[Row], low: str = "error", high: str = "error") -> Spec:
    """Axis of errors that shows these columns."""
    span = min(row[low] for row in rows), max(row[high] for row in rows)
    return log_axis("error", "test error", *span, format=PERCENT)


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


def _curves(x: Spec, rows: Sequence[Row], palette: Palette) -> Spec:
    y = error_axis(rows)
    shared = {"x": x, "y": y, "detail": {"field": "run"}, "color": palette.color()}
    # A seed with zero error has no place on a logarithmic axis, so the shade ends where the axis does.
    floor = {"calculate": f"max(datum.lowest, {y['scale']['domain'][0]})", "as": "floor"}
    band = shared | {"y": y | {"field": "floor"}, "y2": {"field": "highest"}}
    ends, height = label_ends([row for row in rows if row["last"]], x, y, palette)
    layers = [
        layer("area", band, "datum.seeds > 1", floor, opacity=0.12, clip=True),
        layer("line", shared | {"strokeDash": palette.dash()}),
        layer("point", shared | {"shape": palette.shape(), "tooltip": _TIP}),
    ]
    return of_methods([*layers, *ends], height=height)
