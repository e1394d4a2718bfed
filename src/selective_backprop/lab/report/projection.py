"""Project speed-ups to other costs of a backward pass, relative to a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, label_ends, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Row, Spec
from selective_backprop.lab.report.runs import running_means, split_label

RATIOS = [0.25 * i for i in range(1, 21)]


def projected_speed_up(passes: tuple[float, float], reference: tuple[float, float], ratio: float) -> float:
    """Speed-up from the passes for selection and training, if a backward pass costs `ratio` forward passes.

    >>> projected_speed_up((100, 33), (0, 100), 2)
    1.50...
    """
    (scored, trained), (reference_scored, reference_trained) = passes, reference
    return (reference_scored + (1 + ratio) * reference_trained) / (scored + (1 + ratio) * trained)


def passes_to_target(comparison: Comparison, label: str) -> tuple[float, float] | None:
    """Examples scored and trained on until the target was reached, mean over seeds; None if it never was."""
    errors, runs = comparison.mean_curve(label).errors, comparison.finished[label]
    reached = next((i for i, error in enumerate(errors) if error <= comparison.target), None)
    if reached is None:
        return None
    scored = running_means(runs, lambda record: record["scored"])
    return scored[reached], running_means(runs, lambda record: record["trained"])[reached]


def measured_ratio(comparison: Comparison) -> float:
    """Seconds of backward passes divided by those of forward passes, in the reference's runs."""
    assert comparison.reference is not None
    runs = comparison.finished[comparison.reference]
    backward, forward = (
        sum(record["seconds"][key] for run in runs for record in run.records) for key in ("backward", "forward")
    )
    return float(backward / max(forward, 1e-9))


def projection(comparison: Comparison, palette: Palette) -> Figure | None:
    """Lines by ratio, with the runs' own marked; None if no other method reached the target."""
    assert comparison.reference is not None
    reference = passes_to_target(comparison, comparison.reference)
    assert reference is not None  # its last error is within any factor of itself
    own, rows = measured_ratio(comparison), list[Row]()
    for label in comparison.finished:
        passes = passes_to_target(comparison, label)
        if passes is None or label == comparison.reference:
            continue
        name, budget = split_label(label)
        for ratio in RATIOS:
            row = {"run": label, "method": name, "budget": budget, "ratio": ratio}
            rows.append(row | {"speed-up": projected_speed_up(passes, reference, ratio)})
    if not rows or _is_level(rows):
        return None
    at_own = {
        label: projected_speed_up(passes, reference, own)
        for label in comparison.finished
        if label != comparison.reference and (passes := passes_to_target(comparison, label))
    }
    alt = f"At the runs' own ratio of {own:.2f}: " + "; ".join(f"{k} {v:.2f}x" for k, v in at_own.items())
    tips = tooltip(run="run", ratio="ratio|.2f", speed_up="speed-up|.2f")
    low, high = (end([1.0, *(row["speed-up"] for row in rows)]) for end in (min, max))
    domain = [low - 0.05 * (high - low), high + 0.05 * (high - low) or 1.05]
    line: Spec = {
        "x": axis("ratio", "backward cost, in forward passes", domain=[0, 5]),
        "y": axis(
            "speed-up", "speed-up to 1.2x of plain training's final error", domain=domain, nice=False, format=".2~f"
        ),
        "color": palette.color(),
        "strokeDash": palette.dash(),
        "detail": {"field": "run"},
        "tooltip": tips,
    }
    mark = {"type": "rule", "strokeDash": [3, 3]}
    names, height = label_ends([row for row in rows if row["ratio"] == RATIOS[-1]], line["x"], line["y"], palette)
    own_value = {"values": [{"ratio": own, "text": f"these runs: {own:.2f}"}]}
    spec: Spec = {
        "params": [HIDDEN],
        "height": height,
        "layer": [
            {
                "data": {"values": [{"speed-up": 1}]},
                "mark": mark,
                "encoding": {"y": line["y"]},
            },
            {"data": own_value, "mark": mark, "encoding": {"x": {"field": "ratio", "type": "quantitative"}}},
            {
                "data": own_value,
                "mark": {"type": "text", "align": "left", "dx": 4, "y": "height", "dy": -8},
                "encoding": {"x": {"field": "ratio", "type": "quantitative"}, "text": {"field": "text"}},
            },
            {"transform": [SHOWN], "mark": "line", "encoding": line},
            *names,
        ],
    }
    title = "Speed-up by the cost of backward passes"
    note = "What the same passes would gain on other hardware or with another network."
    return Figure(f"projection-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def _is_level(rows: Sequence[Row]) -> bool:
    """Whether no line rises or falls by a hundredth: methods without selection passes gain the same everywhere."""
    lines: dict[str, list[float]] = {}
    for row in rows:
        lines.setdefault(row["run"], []).append(row["speed-up"])
    return all(max(values) < 1.01 * min(values) for values in lines.values())
