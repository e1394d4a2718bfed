"""Project speed-ups to other costs of a backward pass, relative to a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from selective_backprop.lab.report.charts import HIDDEN, SHOWN, Palette, axis, label_ends, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Row, Spec
from selective_backprop.lab.report.runs import running_means, split_label
from selective_backprop.lab.report.targets import AT_TARGET, CHOSEN, DEFAULT, at_targets, reached_at, spans

RATIOS = [0.25, *(0.5 * i for i in range(1, 11))]


def projected_speed_up(passes: tuple[float, float], reference: tuple[float, float], ratio: float) -> float:
    """Speed-up from the passes for selection and training, if a backward pass costs `ratio` forward passes.

    >>> projected_speed_up((100, 33), (0, 100), 2)
    1.50...
    """
    (scored, trained), (reference_scored, reference_trained) = passes, reference
    return (reference_scored + (1 + ratio) * reference_trained) / (scored + (1 + ratio) * trained)


def passes_to_target(comparison: Comparison, label: str, factor: float = DEFAULT) -> tuple[float, float] | None:
    """Examples scored and trained on until the target was reached, mean over seeds; None if it never was."""
    assert comparison.reference is not None
    errors, runs = comparison.mean_curve(label).errors, comparison.finished[label]
    reached = reached_at(errors, factor * comparison.mean_curve(comparison.reference).errors[-1])
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


def projection_rows(comparison: Comparison) -> list[Row]:
    """Speed-ups over the reference by ratio, for all targets; those from `from` to below `to`, as multiples."""
    reference = comparison.reference
    assert reference is not None
    labels = [label for label in comparison.finished if label != reference]
    rows: list[Row] = []
    for start, end, (theirs, *ours) in spans(
        lambda factor: [passes_to_target(comparison, label, factor) for label in (reference, *labels)]
    ):
        assert theirs is not None  # its last error is within any factor of itself
        for label, passes in zip(labels, ours, strict=True):
            if passes is None:
                continue
            name, budget = split_label(label)
            row = {"run": label, "method": name, "budget": budget, "from": start, "to": end}
            rows += [row | {"ratio": ratio, "speed-up": projected_speed_up(passes, theirs, ratio)} for ratio in RATIOS]
    return rows


def projection(comparison: Comparison, palette: Palette) -> Figure | None:
    """Lines by ratio, with the runs' own marked; None if no other method reached any target."""
    assert comparison.reference is not None
    own, rows = measured_ratio(comparison), projection_rows(comparison)
    if not rows or _is_level(rows):
        return None
    reference = passes_to_target(comparison, comparison.reference)
    at_own = {
        label: projected_speed_up(passes, reference, own)
        for label in comparison.finished
        if label != comparison.reference and reference and (passes := passes_to_target(comparison, label))
    }
    words = "; ".join(f"{label} {value:.2f}x" for label, value in at_own.items()) or "no method gets there"
    alt = f"To {DEFAULT}x of plain training's final error, at the runs' own ratio of {own:.2f}: {words}"
    low, high = (end([1.0, *(row["speed-up"] for row in rows)]) for end in (min, max))
    domain = [low - 0.05 * (high - low), high + 0.05 * (high - low) or 1.05]
    line: Spec = {
        "x": axis("ratio", "backward cost, in forward passes", domain=[0, 5]),
        "y": axis("speed-up", "speed-up to the target", domain=domain, nice=False, format=".2~f"),
        "color": palette.color(),
        "strokeDash": palette.dash(),
        "detail": {"field": "run"},
        "tooltip": tooltip(run="run", ratio="ratio|.2f", speed_up="speed-up|.2f"),
    }
    ends: dict[tuple[float, float], list[Row]] = {}
    for row in (row for row in rows if row["ratio"] == RATIOS[-1]):
        ends.setdefault((row["from"], row["to"]), []).append(row)
    named = [(*span, *label_ends(mine, line["x"], line["y"], palette)) for span, mine in ends.items()]
    mark = {"type": "rule", "strokeDash": [3, 3]}
    own_value = {"values": [{"ratio": own, "text": f"these runs: {own:.2f}"}]}
    spec: Spec = {
        "params": [HIDDEN, CHOSEN],
        "height": max(height for *_, height in named),
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
            {"transform": [SHOWN, AT_TARGET], "mark": "line", "encoding": line},
            *at_targets([(start, end, layers) for start, end, layers, _ in named]),
        ],
    }
    title = "Speed-up by the cost of backward passes"
    note = "What the same passes would gain on other hardware or with another network. Choose the target below."
    return Figure(f"projection-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


def _is_level(rows: Sequence[Row]) -> bool:
    """Whether no line rises or falls by a hundredth: methods without selection passes gain the same everywhere."""
    lines: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        lines.setdefault((row["run"], row["from"]), []).append(row["speed-up"])
    return all(max(values) < 1.01 * min(values) for values in lines.values())
