"""Test error: of every arm against its compute, and in the course of training."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop_lab.report.charts import axis, error_axis, layer, log_axis, of_methods
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Figure, Part, Row, Section, Spec
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import forward_passes, method_and_budget, names_of, running_means
from selective_backprop_lab.study.standing import PLAIN

FRONTIERS = (
    "Each point is the end of fully decayed runs, bars span the seeds, and the bold line is plain training: a method "
    "pays where its points lie below or left of that line."
)
CURVES = (
    "Lower and further left is better: a curve that reaches the same error further left got there with less; lines are "
    "means over seeds, shades span the seeds, errors are on a logarithmic scale, and seconds leave out evaluation."
)


def frontiers(comparisons: Sequence[Comparison], material: Material) -> Section:
    """A chart of error against compute for each workload, one point per arm."""
    parts = [
        _frontier(comparison, material)
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


def _frontier(comparison: Comparison, material: Material) -> Figure:
    rows, palette = arm_rows(comparison), material.palette
    costs = [row["compute"] for row in rows]
    x = log_axis("compute", "compute, in epochs of plain training", costs, format=",.3~f")
    y = error_axis(rows, "lowest", "highest")
    lines = {"x": x, "y": y, "color": palette.color(rows)}
    layers = [
        layer("line", lines, "datum.plain", strokeWidth=4.5),
        layer("line", lines, "!datum.plain", strokeWidth=1.75),
        layer("rule", lines | {"y": y | {"field": "lowest"}, "y2": {"field": "highest"}}, strokeWidth=1.5, opacity=0.6),
        layer("point", lines | {"shape": palette.shape(rows), "detail": {"field": "run"}}, size=80),
    ]
    return Figure(f"frontier-{comparison.id}", comparison.title, of_methods(layers), rows)


_X = {
    "steps": ("Test error by training step", "training iterations"),
    "passes": ("Test error by forward passes", "forward passes, in examples"),
    "seconds": ("Test error by time", "seconds of training"),
    "compute": ("Test error by compute", "compute, in epochs of plain training"),
}


def errors(comparison: Comparison, material: Material) -> list[Part]:
    """Curves of a workload, against everything that a run spends."""
    rows = curve_rows(comparison)
    y = error_axis(rows)
    # A seed with zero error has no place on a logarithmic axis, so the shade ends where the axis does.
    floor = {"calculate": f"max(datum.lowest, {y['scale']['domain'][0]})", "as": "floor"}
    parts: list[Part] = []
    for column, (title, label) in _X.items():
        if column == "seconds" and not comparison.same_hardware:
            continue
        lines = material.palette.lines(rows, axis(column, label, format=",.3~f"), y)
        band: Spec = {name: lines[0]["encoding"][name] for name in ("x", "color", "detail")}
        band |= {"y": y | {"field": "floor"}, "y2": {"field": "highest"}}
        shade = layer("area", band, "datum.seeds > 1", floor, opacity=0.12, clip=True)
        parts.append(Figure(f"error-by-{column}", title, of_methods([shade, *lines]), rows))
    return parts


def curve_rows(comparison: Comparison) -> list[Row]:
    """Rows with cost and errors after each epoch of each label, as means over seeds with their span."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        curve, steps = comparison.mean_curve(label), running_means(runs, lambda record: record["batches"])
        passes = running_means(runs, forward_passes)
        for i in range(len(curve.errors)):
            at = [run.curve.errors[i] for run in runs]
            costs = {"steps": steps[i], "passes": passes[i], "seconds": curve.seconds[i], "compute": curve.compute[i]}
            spread = {"error": curve.errors[i], "lowest": min(at), "highest": max(at), "seeds": len(runs)}
            rows.append(names_of(label) | {"epoch": i + 1} | costs | spread)
    return rows
