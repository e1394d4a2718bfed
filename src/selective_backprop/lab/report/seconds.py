"""Where the time went: seconds by phase, per epoch and per machine, and what other hardware would make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from selective_backprop.lab.report.charts import (
    HIDDEN,
    SHOWN,
    Palette,
    axis,
    bars,
    choice,
    colors,
    layer,
    of_methods,
    tooltip,
)
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop.lab.report.runs import Run, names_of, running_means
from selective_backprop.lab.report.theme import PHASES as PHASE_COLOURS
from selective_backprop.lab.runs.training import Record
from selective_backprop.lab.study.curves import FACTORS

READING = (
    "Selection pays if its own passes take less than what it takes off the forward and backward passes of training."
)
PHASES = {
    "forward (selection)": "selection",
    "forward (training)": "forward",
    "backward": "backward",
    "loading": "loading",
    "other": "other",
}


def where_time_went(comparisons: Sequence[Comparison], palette: Palette) -> Section:
    """Phases until a target, costs per epoch, and a projection, of each workload."""
    parts: list[Part] = []
    for comparison in comparisons:
        if comparison.reference is not None:
            parts.append(_to_target(comparison))
        if comparison.reference is not None and (rows := projection_rows(comparison)):
            parts.append(_projection(comparison, rows, palette))
        parts.append(_epochs(comparison))
    return Section("seconds", "Where the time went", READING, parts)


# ---- a target error that the reader chooses: a multiple of plain training's final error

DEFAULT = 1.2
CHOSEN: Spec = choice("target", FACTORS, "target: plain training's final error x", DEFAULT)
AT_TARGET: Spec = {"filter": "datum.target == target"}


def reached_at(errors: Sequence[float], target: float) -> int | None:
    """First epoch from which on no error is above the target; None if the last one is.

    >>> reached_at([0.3, 0.1, 0.2, 0.1], 0.15), reached_at([0.3, 0.1, 0.2, 0.1], 0.2), reached_at([0.3], 0.2)
    (3, 1, None)
    """
    reached = len(errors)
    while reached and errors[reached - 1] <= target:
        reached -= 1
    return reached if reached < len(errors) else None


def _final_error(comparison: Comparison) -> float:
    assert comparison.reference is not None
    return comparison.mean_curve(comparison.reference).errors[-1]


def phase_rows(comparison: Comparison) -> list[Row]:
    """Seconds by phase until each target was reached, or of the whole run. Means over seeds.

    A target is reached once the error is at most the target and stays so.
    """
    final, rows = _final_error(comparison), []
    for label, runs in comparison.finished.items():
        errors = comparison.mean_curve(label).errors
        sums = {words: running_means(runs, _phase(key)) for words, key in PHASES.items()}
        for factor in FACTORS:
            reached = reached_at(errors, factor * final)
            for words in PHASES:
                spent = sums[words][-1 if reached is None else reached]
                row = names_of(label) | {"phase": words, "seconds": spent}
                rows.append(row | {"reached": reached is not None, "target": factor})
    return rows


def _phase(key: str) -> Callable[[Record], float]:
    return lambda record: float(record["seconds"][key])


def _to_target(comparison: Comparison) -> Figure:
    rows, names = phase_rows(comparison), list(PHASES)
    at_default = [row for row in rows if row["target"] == DEFAULT]
    totals = {label: sum(row["seconds"] for row in at_default if row["run"] == label) for label in comparison.finished}
    never = {row["run"] for row in at_default if not row["reached"]}
    alt = f"Seconds to {DEFAULT}x of plain training's final error: " + "; ".join(
        f"{label} {total:.1f}{' (never reached)' if label in never else ''}" for label, total in totals.items()
    )
    encoding = {
        "x": axis("seconds", "seconds"),
        "color": colors("phase", names, PHASE_COLOURS),
        "opacity": {"condition": {"test": "datum.reached", "value": 1}, "value": 0.4},
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": tooltip(run="run", phase="phase", seconds="seconds|.3~g", reached="reached"),
    }
    order = {"calculate": f"indexof({names}, datum.phase)", "as": "order"}
    spec = bars(list(comparison.finished), encoding, params=[HIDDEN, CHOSEN], where=[SHOWN, AT_TARGET, order])
    note = "Choose the target below. Pale bars never reached it, and show the whole run."
    return Figure(f"phases-{comparison.id}", "Time to the target, by phase", alt, spec, rows, comparison.id, note=note)


# ---- epochs


def epoch_rows(comparison: Comparison) -> list[Row]:
    """Rows with the seconds of an epoch and the fractions of the training set dropped, as means."""
    rows: list[Row] = []
    for label, runs in comparison.by_label.items():
        count = sum(len(run.records) for run in runs)
        spent = _total(runs, lambda r: sum(r["seconds"].values()) - r["seconds"]["evaluation"])
        offered, scored, skipped, trained = (
            _total(runs, itemgetter(key)) for key in ("offered", "scored", "skipped_before_loading", "trained")
        )
        # A diet offers only what it left; the size of the whole training set follows from what compute is counted in.
        compute = _total(runs, itemgetter("compute"))
        diet = runs[0].method == "diet" and compute > 0
        examples = count * (scored + 3 * trained) / (3 * compute) if diet else offered
        dropped = {"before training": 1 - offered / examples, "before loading": skipped / examples}
        dropped["after scoring"] = max(0.0, (offered - skipped - trained) / examples)
        rows.append(names_of(label) | {"seconds": spent / count} | dropped)
    return rows


def _total(runs: Sequence[Run], value: Callable[[Record], float]) -> float:
    return float(sum(value(record) for run in runs for record in run.records))


def _epochs(comparison: Comparison) -> Table:
    kinds = ("before training", "before loading", "after scoring")
    rows = epoch_rows(comparison)
    cells = [[row["run"], f"{row['seconds']:.3g}", *(f"{row[kind]:.1%}" for kind in kinds)] for row in rows]
    title = "Seconds of an epoch, and the share of the data that was dropped in it"
    note = (
        "Before training: pruned once and for all, by a diet. Before loading and after scoring: by selection, anew in "
        "each epoch."
    )
    heading = ["method", "seconds per epoch", *kinds]
    return Table(f"epochs-{comparison.id}", title, heading, cells, comparison.id, note=note)


# ---- speed-ups where a backward pass costs more or fewer forward passes

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
    errors, runs = comparison.mean_curve(label).errors, comparison.finished[label]
    reached = reached_at(errors, factor * _final_error(comparison))
    if reached is None:
        return None
    scored = running_means(runs, lambda record: record["scored"])
    return scored[reached], running_means(runs, lambda record: record["trained"])[reached]


def measured_ratio(comparison: Comparison) -> float:
    """Seconds of backward passes divided by those of forward passes, in the reference's runs."""
    runs = comparison.finished[comparison.reference or ""]
    return _total(runs, _phase("backward")) / max(_total(runs, _phase("forward")), 1e-9)


def projection_rows(comparison: Comparison) -> list[Row]:
    """Speed-ups over the reference by ratio, for each target that both reach."""
    reference = comparison.reference or ""
    rows: list[Row] = []
    for label in comparison.finished:
        for factor in FACTORS if label != reference else ():
            theirs, ours = (passes_to_target(comparison, one, factor) for one in (reference, label))
            if theirs is not None and ours is not None:
                row = names_of(label) | {"target": factor}
                rows += [row | {"ratio": at, "speed-up": projected_speed_up(ours, theirs, at)} for at in RATIOS]
    return rows


def _projection(comparison: Comparison, rows: list[Row], palette: Palette) -> Figure:
    """Lines by ratio, with the runs' own marked."""
    own = measured_ratio(comparison)
    nearest = min(RATIOS, key=lambda ratio: abs(ratio - own))
    at_own = [row for row in rows if row["ratio"] == nearest and row["target"] == DEFAULT]
    words = "; ".join(f"{row['run']} {row['speed-up']:.2f}x" for row in at_own) or "no method gets there"
    alt = f"To {DEFAULT}x of plain training's final error, at a ratio of {nearest:.2f}: {words}"
    x = axis("ratio", "backward cost, in forward passes", domain=[0, 5])
    y = axis("speed-up", "speed-up to the target", zero=False, format=".2~f")
    line = {"x": x, "y": y, "color": palette.color(), "strokeDash": palette.dash(), "detail": {"field": "run"}}
    tips = {"tooltip": tooltip(run="run", ratio="ratio|.2f", speed_up="speed-up|.2f")}
    own_value = {"data": {"values": [{"ratio": own, "text": f"these runs: {own:.2f}"}]}}
    at = {"x": {"field": "ratio", "type": "quantitative"}}
    layers = [
        layer("rule", {"y": y}, strokeDash=[3, 3]) | {"data": {"values": [{"speed-up": 1}]}},
        layer("rule", at, strokeDash=[3, 3]) | own_value,
        layer("text", at | {"text": {"field": "text"}}, align="left", dx=4, y="height", dy=-8) | own_value,
        layer("line", line | tips, SHOWN, AT_TARGET),
    ]
    title = "Speed-up by the cost of backward passes"
    note = "What the same passes would gain on other hardware or with another network. Choose the target below."
    spec = of_methods(layers, params=[CHOSEN]) | {"transform": []}  # two layers have rows of no method
    return Figure(f"projection-{comparison.id}", title, alt, spec, rows, comparison.id, note=note)


# ---- several machines

MACHINES = (
    "Plain training on each machine: the more a backward pass costs in forward passes, the more selection can gain "
    "there."
)


def machine_of(run: Run) -> str:
    """The machine of a run in words: its accelerator, or else its processor and threads."""
    known = {key: value for key, value in run.environment.items() if value is not None}
    if "accelerator" in known:
        return str(known["accelerator"])[:80]
    processor = str(known.get("cpu") or known.get("machine") or "unknown machine")[:80]
    return f"{processor}, {known['threads']} threads" if "threads" in known else processor


def machine_rows(runs: Sequence[Run]) -> list[Row]:
    """Milliseconds per batch in plain training, forward and backward, by network and machine; over all epochs."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        if run.method == "traditional":
            key = str(run.recipe["model"]), machine_of(run), int(run.recipe["batch_size"])
            groups.setdefault(key, []).append(run)
    rows: list[Row] = []
    for (model, machine, size), mine in groups.items():
        batches = max(1.0, _total(mine, itemgetter("batches")))
        costs = {kind: 1000 * _total(mine, _phase(kind)) / batches for kind in ("forward", "backward")}
        row = {"run": f"{machine}: {model}, batches of {size}", "machine": machine, "model": model, "batch size": size}
        row["backward / forward"] = costs["backward"] / max(costs["forward"], 1e-9)
        rows += [row | {"pass": kind, "milliseconds": value} for kind, value in costs.items()]
    return rows


def machines(runs: Sequence[Run]) -> Section:
    """A chart of all machines, if there are several."""
    rows, kinds = machine_rows(runs), ["forward", "backward"]
    section = Section("machines", "Several machines", MACHINES, [])
    if len({row["machine"] for row in rows}) < 2:
        return section
    ratios = {row["run"]: row["backward / forward"] for row in rows}
    tips = tooltip(run="run", what="pass", milliseconds="milliseconds|.3~g", ratio="backward / forward|.2f")
    encoding = {
        "x": axis("milliseconds", "milliseconds per batch"),
        "color": colors("pass", kinds, PHASE_COLOURS[1:3]),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": tips,
    }
    spec = bars(list(ratios), encoding, where=[{"calculate": f"indexof({kinds}, datum.pass)", "as": "order"}])
    words = "; ".join(f"{run} {ratio:.2f}" for run, ratio in ratios.items())
    alt = f"A backward pass costs, in forward passes: {words}."
    section.parts.append(Figure("cost-by-machine", "Cost of a batch on each machine", alt, spec, rows, note=alt))
    return section
