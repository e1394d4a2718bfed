"""Where the time went: seconds by phase, per epoch and per machine, and what other hardware would make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from selective_backprop_lab.report.charts import HIDDEN, SHOWN, axis, bars, choice, colors, layer, of_methods
from selective_backprop_lab.report.comparisons import Comparison
from selective_backprop_lab.report.figures import Figure, Part, Row, Section, Spec, Table
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.runs import Run, names_of, running_means
from selective_backprop_lab.report.theme import PHASES as PHASE_COLOURS
from selective_backprop_lab.runs.training import Record
from selective_backprop_lab.study.curves import FACTORS

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


def where_time_went(comparison: Comparison, material: Material) -> list[Part]:
    """Phases until a target, a projection, and costs per epoch."""
    parts: list[Part] = []
    if comparison.reference is not None:
        parts.append(_to_target(comparison))
        if rows := projection_rows(comparison):
            parts.append(_projection(comparison, rows, material))
    return [*parts, _epochs(comparison)]


# ---- a target error that the reader chooses: a multiple of plain training's final error

CHOSEN: Spec = choice("target", FACTORS, "target: plain training's final error x", 1.2)
AT_TARGET: Spec = {"filter": "datum.target == target"}


def reached_at(comparison: Comparison, label: str, factor: float) -> int | None:
    """Epoch from which on the error of a label stays within this factor of the reference's final error."""
    assert comparison.reference is not None
    final = comparison.mean_curve(comparison.reference).errors[-1]
    return comparison.mean_curve(label).reached_at(factor * final)


def phase_rows(comparison: Comparison) -> list[Row]:
    """Seconds by phase until each target was reached, or of the whole run. Means over seeds.

    A target is reached once the error is at most the target and stays so.
    """
    rows: list[Row] = []
    for label, runs in comparison.finished.items():
        sums = {words: running_means(runs, _phase(key)) for words, key in PHASES.items()}
        for factor in FACTORS:
            reached = reached_at(comparison, label, factor)
            row = names_of(label) | {"reached": reached is not None, "target": factor}
            for words, spent in sums.items():
                rows.append(row | {"phase": words, "seconds": spent[-1 if reached is None else reached]})
    return rows


def _phase(key: str) -> Callable[[Record], float]:
    return lambda record: float(record["seconds"][key])


def _to_target(comparison: Comparison) -> Figure:
    rows = phase_rows(comparison)
    pale = {"condition": {"test": "datum.reached", "value": 1}, "value": 0.4}
    color = colors("phase", list(PHASES), PHASE_COLOURS)
    spec = bars(rows, axis("seconds", "seconds"), color, where=[SHOWN, AT_TARGET], opacity=pale)
    note = "Choose the target below. Pale bars never reached it, and show the whole run."
    return Figure("phases", "Time to the target, by phase", spec | {"params": [HIDDEN, CHOSEN]}, rows, note)


# ---- epochs

_DROPPED = ("before training", "before loading", "after scoring")


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
        shares = (1 - offered / examples, skipped / examples, max(0.0, (offered - skipped - trained) / examples))
        rows.append({"run": label, "seconds": spent / count} | dict(zip(_DROPPED, shares, strict=True)))
    return rows


def _total(runs: Sequence[Run], value: Callable[[Record], float]) -> float:
    return float(sum(value(record) for run in runs for record in run.records))


def _epochs(comparison: Comparison) -> Table:
    rows = epoch_rows(comparison)
    cells = [[row["run"], f"{row['seconds']:.3g}", *(f"{row[kind]:.1%}" for kind in _DROPPED)] for row in rows]
    title = "Seconds of an epoch, and the share of the data that was dropped in it"
    note = (
        "Before training: pruned once and for all, by a diet. Before loading and after scoring: by selection, anew in "
        "each epoch."
    )
    return Table("epochs", title, ["method", "seconds per epoch", *_DROPPED], cells, note)


# ---- speed-ups where a backward pass costs more or fewer forward passes

RATIOS = [0.25, *(0.5 * i for i in range(1, 11))]


def projected_speed_up(passes: tuple[float, float], reference: tuple[float, float], ratio: float) -> float:
    """Speed-up from the passes for selection and training, if a backward pass costs `ratio` forward passes.

    >>> projected_speed_up((100, 33), (0, 100), 2)
    1.50...
    """
    (scored, trained), (reference_scored, reference_trained) = passes, reference
    return (reference_scored + (1 + ratio) * reference_trained) / (scored + (1 + ratio) * trained)


def passes_to_target(comparison: Comparison, label: str, factor: float) -> tuple[float, float] | None:
    """Examples scored and trained on until the target was reached, mean over seeds; None if it never was."""
    reached, runs = reached_at(comparison, label, factor), comparison.finished[label]
    if reached is None:
        return None
    return running_means(runs, itemgetter("scored"))[reached], running_means(runs, itemgetter("trained"))[reached]


def measured_ratio(runs: Sequence[Run]) -> float:
    """Seconds of backward passes divided by those of forward passes."""
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


def _projection(comparison: Comparison, rows: list[Row], material: Material) -> Figure:
    """Lines by ratio, with the runs' own in words."""
    x = axis("ratio", "backward cost, in forward passes", domain=[0, 5])
    y = axis("speed-up", "speed-up to the target", zero=False, format=".2~f")
    layers = [layer("rule", {"y": {"datum": 1}}, strokeDash=[3, 3]), *material.palette.lines(rows, x, y)]
    note = (
        "What the same passes would gain on other hardware or with another network. In these runs a backward pass "
        f"costs {measured_ratio(comparison.finished[comparison.reference or '']):.2f} forward passes. Choose the "
        "target below."
    )
    spec = of_methods(layers, params=[CHOSEN], where=[AT_TARGET])
    return Figure("projection", "Speed-up by the cost of backward passes", spec, rows, note)


# ---- several machines

MACHINES = (
    "Plain training on each machine: the more a backward pass costs in forward passes, the more selection can gain "
    "there."
)


def machine_of(run: Run) -> str:
    """The machine of a run in words: its accelerator, or else its processor and threads."""
    known = {key: str(value)[:80] for key, value in run.environment.items() if value is not None}
    if "accelerator" in known:
        return known["accelerator"]
    processor = known.get("cpu") or known.get("machine") or "unknown machine"
    return f"{processor}, {known['threads']} threads" if "threads" in known else processor


def machine_rows(runs: Sequence[Run]) -> list[Row]:
    """Milliseconds per batch in plain training, forward and backward, by network and machine; over all epochs."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.method == "traditional":
            words = f"{machine_of(run)}: {run.recipe['model']}, batches of {run.recipe['batch_size']}"
            groups.setdefault((machine_of(run), words), []).append(run)
    rows: list[Row] = []
    for (machine, words), mine in groups.items():
        batches = max(1.0, _total(mine, itemgetter("batches")))
        for kind in ("forward", "backward"):
            costs = {"pass": kind, "milliseconds": 1000 * _total(mine, _phase(kind)) / batches}
            rows.append({"run": words, "machine": machine, "backward / forward": measured_ratio(mine)} | costs)
    return rows


def machines(runs: Sequence[Run]) -> Section:
    """A chart of all machines, if there are several."""
    rows, parts = machine_rows(runs), []
    if len({row["machine"] for row in rows}) > 1:
        color = colors("pass", ["forward", "backward"], PHASE_COLOURS[1:3])
        spec = bars(rows, axis("milliseconds", "milliseconds per batch"), color)
        ratios = {row["run"]: row["backward / forward"] for row in rows}
        words = "; ".join(f"{run} {ratio:.2f}" for run, ratio in ratios.items())
        note = f"A backward pass costs, in forward passes: {words}."
        parts.append(Figure("cost-by-machine", "Cost of a batch on each machine", spec, rows, note))
    return Section("machines", "Several machines", MACHINES, parts)
