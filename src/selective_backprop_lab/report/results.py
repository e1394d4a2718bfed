"""What the runs came to: who won, errors, times, settings, and how the runs were made. All of it from their records."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from selective_backprop_lab.report.draw import Axis, Line, bars
from selective_backprop_lab.report.parts import Cell, Figure, Material, Notes, Part, Section, Table
from selective_backprop_lab.report.runs import PHASES, Comparison, Frame, Run, method_and_budget, table_of
from selective_backprop_lab.study import standing
from selective_backprop_lab.study.curves import FACTORS, Curve
from selective_backprop_lab.study.frontier import Frontier
from selective_backprop_lab.study.standing import PLAIN, RANDOM, Standings, error_of
from selective_backprop_lab.study.tables import arms_table, multiplier_cell, speed_up_table

ERROR, SECONDS = Axis("error", "test error", log=True, percent=True), Axis("", "seconds")

# ---- the first screen

HEADLINE = "M is how many times more compute the best baseline needs for the same error: above 1 the method is cheaper."
LEGEND = {
    "better": "cheaper than every baseline",
    "same": "not told apart from one of them",
    "worse": "dearer than one of them",
    "not_checked": "not checked",
}
_MATRIX_NOTE = (
    "A column compares all methods at the error above it. Plain training has the compute that it needs, random subsets "
    "their multiplier against plain training. Below a multiplier is its 95% interval over seeds; “>” and “<” are "
    "bounds. Runs that differ in data, network or recipe are workloads of their own, not compared with each other."
)


def headline(comparisons: Sequence[Comparison]) -> Section:
    """The matrix, a sentence for each workload, and what keeps them from being convincing."""
    none = "Nothing can be said: no run is finished."
    findings = [(one.id, one.title, standing.winner(one.standings) if one.arms else none) for one in comparisons]
    doubts = [(one.id, one.title, " ".join(alerts_of(one))) for one in comparisons if alerts_of(one)]
    parts: list[Part] = [Notes("findings", "Who won", findings), multipliers_table(comparisons)]
    parts += [Notes("alerts", "Before you believe it", doubts, "alerts")] if doubts else []
    return Section("headline", "Which method won", HEADLINE, parts, overview=True)


def multipliers_table(comparisons: Sequence[Comparison]) -> Table:
    """Methods by workloads, each at its stated errors; in seconds too where the hardware was the same."""
    columns: list[tuple[Comparison, Standings, str, str]] = []
    for one in comparisons:
        at = [(one.standings, target, f"at {error:.2%} error") for target, error in one.standings.targets.items()]
        timed = standing.standings(one.arms, seconds=True) if one.same_hardware else None
        if timed is not None and timed.targets:
            target, error = next(iter(timed.targets.items()))
            at.append((timed, target, f"in seconds, at {error:.2%} error"))
        columns += [(one, *column) for column in at or [(one.standings, "", "")]]
    heading: list[Any] = ["method", *(Cell(one.title, words, link=one.id) for one, _, _, words in columns)]
    names = {one.name for _, found, _, _ in columns for one in found.methods}
    rows = [
        [Cell(name, _ALSO.get(name, "")), *(_cell(name, found, target) for _, found, target, _ in columns)]
        for name in sorted(names, key=lambda name: (name != PLAIN, name != RANDOM, name.lower()))
    ]
    return Table("multipliers", "Compute multiplier", heading, rows, _MATRIX_NOTE, LEGEND)


_ALSO = {PLAIN: "plain training", RANDOM: "random subsets"}


def _cell(name: str, found: Standings, target: str) -> Cell:
    own = next((one for one in found.methods if one.name == name), None)
    if own is None:
        return Cell("not run")
    best = min(own.budgets, key=lambda budget: budget.error)
    hint = f"lowest error {error_of(best)} with {best.cost:.2f} {found.unit}"
    if not target:
        return Cell("not checked", "plain training was not run", "not_checked", hint)
    error = found.targets[target]
    if own.is_plain:
        spent = Frontier(own.budgets).cost_of(error)[0]
        return Cell(f"{spent:.2f} {found.unit.split()[0]}", standing.TARGETS[target], "", hint)
    kind = "" if own.is_random else own.verdict(target).name.lower()
    value, _, span = multiplier_cell(own, target, error).partition(" (")
    if not own.reaches(error):
        span = f"at best {best.error:.2%}"
    elif not own.is_random and not own.random:
        span = "random subsets were not run"
    return Cell(value, span.removesuffix(")"), kind, hint)


def alerts_of(comparison: Comparison) -> list[str]:
    """List the doubts about a comparison: first what its numbers show, then what its runs lack."""
    sentences = standing.alerts(comparison.standings) if comparison.arms else []
    idle = [label for label, runs in comparison.finished.items() if not any(map(_selected, runs))]
    if idle:
        sentences.append(f"{' and '.join(idle)} never switched on: trained on every candidate, as plain training does.")
    if unfinished := sum(not run.finished for run in comparison.runs):
        sentences.append(f"{unfinished} of {len(comparison.runs)} runs are not finished and not counted.")
    if not comparison.same_hardware:
        sentences.append("Runs on different hardware, or with other threads: their seconds are not compared.")
    return sentences


def _selected(run: Run) -> bool:
    """Whether an epoch left out any candidate; plain training, random subsets and diets are not asked."""
    left_out = any(record["trained"] < 0.999 * record["offered"] for record in run.records)
    return run.method in (PLAIN, "diet") or "random" in run.method or left_out


FRONTIERS = (
    "Points are ends of decayed runs, bars span seeds: a method pays below or left of the bold line, plain training."
)


def frontiers(comparisons: Sequence[Comparison], material: Material) -> Section:
    """A chart of error against compute for each workload, one point per arm."""
    x, parts = Axis("compute", "compute, in epochs of plain training", log=True), []
    for one in comparisons:
        rows = [
            {"method": method_and_budget(arm.label)[0], "budget": "", "arm": arm.label, "compute": arm.compute.cost}
            | {"error": arm.compute.error, "lowest": min(arm.compute.errors), "highest": max(arm.compute.errors)}
            | {"seeds": len(arm.compute.errors), "plain": arm.method == PLAIN}
            for arm in sorted(one.arms, key=lambda arm: arm.compute.cost)
        ]
        if len({row["method"] for row in rows}) > 1:
            parts += material.plot(f"frontier-{one.id}", one.title, pd.DataFrame(rows), x, ERROR)
    return Section("frontiers", "Error against compute", FRONTIERS, parts, overview=True)


# ---- a workload: tables, and error in the course of training

NUMBERS = "An arm is a method with a number of epochs, its learning rate fully decayed at the end."
_ARMS_NOTE = "Mean errors over seeds ± standard deviation. Lossless: within 2% of the best error of plain training."
_SPEED_NOTE = (
    "How many times less time was spent until the error came within 1.1x, 1.2x or 1.4x of its final error. It flatters "
    "a method where that run is longer than it need be; the multiplier does not."
)


def numbers(comparison: Comparison, material: Material) -> list[Part]:
    """All arms of a workload, then speed-ups to a target."""
    if not comparison.arms:
        return []
    table = arms_table(comparison.arms, comparison.standings.targets)
    size = next((run.test_examples for run in comparison.runs if run.test_examples), None)
    heading = [table.heading[0], "error" if size is None else f"error on {size:,} test examples", *table.heading[2:]]
    unlike = (
        "" if comparison.same_hardware else " Seconds are left out: the runs were not all made on the same hardware."
    )
    parts: list[Part] = [Table("arms", "All arms", heading, table.rows, _ARMS_NOTE + unlike)]
    reference, finished = comparison.reference, comparison.finished
    if reference is not None and all(arm.seconds is not None for arm in comparison.arms):
        seeds = [run.seed for run in finished[reference]]
        paired = {label: runs for label, runs in finished.items() if [run.seed for run in runs] == seeds}
        table = speed_up_table({label: [run.curve for run in runs] for label, runs in paired.items()}, reference)
        title = f"Speed-up in seconds, against {reference}"
        parts.append(Table("speed-up-seconds", title, table.heading, table.rows, _SPEED_NOTE))
    return parts


CURVES = "Further left at the same error is better. Lines are means over seeds, shades span them."
_COSTS = {
    "error-by-steps": ("Test error by training step", "batches", "training iterations"),
    "error-by-passes": ("Test error by forward passes", "passes", "forward passes, in examples"),
    "error-by-seconds": ("Test error by time", "seconds", "seconds of training, without evaluation"),
    "error-by-compute": ("Test error by compute", "compute", "compute, in epochs of plain training"),
}


def errors(comparison: Comparison, material: Material) -> list[Part]:
    """Curves of a workload, against everything that a run spends."""
    parts: list[Part] = []
    for id, (title, column, words) in _COSTS.items():
        frame = comparison.epochs[["run", "method", "budget", "epoch", column, "error", "lowest", "highest", "seeds"]]
        if column != "seconds" or comparison.same_hardware:
            x = Axis(column, words, ends=(0, frame[column].max() or 1))
            parts += material.plot(id, title, frame, x, ERROR, shade=True)
    return parts


# ---- where the time went

TIMES = "Selection pays if its own passes take less than what it takes off the forward and backward passes of training."
_TARGET = {"chosen": "target: plain training's final error x", "first": "1.2"}
_RATIOS = [0.25, *(0.5 * i for i in range(1, 11))]


def times(comparison: Comparison, material: Material) -> list[Part]:
    """Phases until a target, a projection to other hardware, and costs per epoch."""
    parts, rows = _to_target(comparison, material) if comparison.reference is not None else [], []
    for run, epochs in comparison.epochs.groupby("run", sort=False):
        last = epochs.iloc[-1]
        # A diet offers only what it left; the size of the whole training set follows from what compute is counted in.
        diet = comparison.by_label[run][0].method == "diet"
        examples = len(epochs) * (last.scored + 3 * last.trained) / (3 * last.compute) if diet else last.offered
        after = max(0.0, (last.offered - last.skipped - last.trained) / examples)
        shares = (1 - last.offered / examples, last.skipped / examples, after)
        rows.append([run, f"{last.seconds / len(epochs):.3g}", *(f"{share:.1%}" for share in shares)])
    heading = ["method", "seconds per epoch", "before training", "before loading", "after scoring"]
    note = "Before training: pruned once and for all, by a diet. The others: by selection, anew in each epoch."
    title = "Seconds of an epoch, and the share of the data that was dropped in it"
    return [*parts, Table("epochs", title, heading, rows, note)]


def _to_target(comparison: Comparison, material: Material) -> list[Part]:
    """What each finished label spent until it reached a multiple of the reference's final error, or in all."""
    finished = comparison.epochs[comparison.epochs["run"].isin(list(comparison.finished))]
    final = finished.loc[finished["run"] == comparison.reference, "error"].iloc[-1]
    found = []
    for factor in FACTORS:
        for _, epochs in finished.groupby("run", sort=False):
            at = Curve(list(epochs["error"]), [], []).reached_at(factor * final)
            end = epochs.iloc[-1 if at is None else at].to_dict()
            found.append(end | {"target": f"{factor:g}", "reached": at is not None})
    ends = pd.DataFrame(found)
    colors = {phase: f"var(--phase{i})" for i, phase in enumerate(PHASES)}
    pictures = {
        target: bars([(end["run"], end, not end["reached"]) for end in mine.to_dict("records")], colors, SECONDS)
        for target, mine in ends.groupby("target")
    }
    note = "Pale bars never reached the target, and show the whole run."
    shown = ends[["run", "target", "reached", *PHASES]]
    phases = Figure("phases", "Time to the target, by phase", pictures, shown, note, **_TARGET)
    plain, rows = ends[ends["run"] == comparison.reference].set_index("target"), []
    for own in ends[ends["reached"] & (ends["run"] != comparison.reference)].to_dict("records"):
        theirs, row = plain.loc[own["target"]], {key: own[key] for key in ("run", "method", "budget", "target")}
        for ratio in _RATIOS:
            costs = (end["scored"] + (1 + ratio) * end["trained"] for end in (theirs, own))
            rows.append(row | {"ratio": ratio, "speed-up": next(costs) / next(costs)})
    ratio = plain["backward"].iloc[0] / max(plain["forward (training)"].iloc[0], 1e-9)
    note = f"What these passes would gain on other hardware. Here a backward pass costs {ratio:.2f} forward passes."
    x, y = Axis("ratio", "backward cost, in forward passes", ends=(0, 5)), Axis("speed-up", "speed-up to the target")
    equal = Line([0, 5], [1, 1], dash="3 3", width=1)
    title = "Speed-up by the cost of backward passes"
    frame = pd.DataFrame(rows, columns=["run", "method", "budget", "target", "ratio", "speed-up"])
    looks: dict[str, Any] = {"choose": "target", "note": note, "besides": [equal], **_TARGET}
    return [phases, *material.plot("projection", title, frame, x, y, **looks)]


MACHINES = "Plain training: the more a backward pass costs in forward passes, the more selection can gain there."


def machines(runs: Sequence[Run]) -> Section:
    """A chart of the cost of a batch on all machines, if there are several."""
    plain = [run for run in runs if run.method == PLAIN]
    frame = table_of(plain).groupby(["machine", "batch", "number"]).last().groupby(["machine", "batch"]).sum()
    if frame.index.get_level_values("machine").nunique() < 2:
        return Section("machines", "Several machines", MACHINES, [])
    for name, column in (("forward", "forward (training)"), ("backward", "backward")):
        frame[name] = 1000 * frame[column] / frame["batches"].clip(lower=1)
    frame["ratio"] = frame["backward"] / frame["forward"].clip(lower=1e-9)
    words = [f"{machine}: {batch}: a backward pass costs " for machine, batch in frame.index]
    costs = zip(words, frame.to_dict("records"), strict=True)
    rows = [(f"{one}{row['ratio']:.2f} forward passes", row, False) for one, row in costs]
    svg = bars(rows, {"forward": "var(--phase1)", "backward": "var(--phase2)"}, Axis("", "milliseconds per batch"))
    shown = frame.reset_index()[["machine", "batch", "forward", "backward", "ratio"]]
    part = Figure("cost-by-machine", "Cost of a batch on each machine", {"": svg}, shown)
    return Section("machines", "Several machines", MACHINES, [part])


# ---- sweeps: what settings do

SENSITIVITY = "A line joins runs that differ in one setting alone, bars span seeds. Where it is flat, tuning is no use."
_WORDS = {
    "every": "staleness: scores renewed every n epochs",
    "label_noise": "share of wrong labels",
    "model": "architecture",
    "schedule": "learning-rate schedule",
    "lr": "learning rate",
}
_PAIR, _A_NUMBER = re.compile(r"(\w+)=(\S*)"), re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
_LISTED = 12
_SHOWN_FROM = 3.0  # times the lowest error: points above are of the first epochs


def sensitivity(runs: Sequence[Run], material: Material) -> Section:
    """Charts for every setting that a sweep varied, and one of all settings together."""
    rows = []
    for run in (run for run in runs if run.finished and not run.is_baseline):
        method, budget = method_and_budget(run.label)
        known = run.recipe | run.conditions
        about = [str(known.get(name)) for name in ("dataset", "model", "image_size", "label_noise", "validation")]
        row = {"run": run, "method": method, "settings": tuple(_PAIR.findall(budget)), "dataset": about[0]}
        row |= {"subject": tuple(about), "arm": (run.label, run.epochs, str(run.conditions))}
        rows.append(row | {"error": run.records[-1]["test_error"]})
    parts: list[Part] = []
    swept = any(row["settings"] for row in rows)
    table = pd.DataFrame(rows if swept else [], columns=None if swept else ["dataset", "subject"])
    for number, (dataset, mine) in enumerate(table.groupby("dataset", sort=False)):
        for name in dict.fromkeys(name for settings in mine["settings"] for name, _ in settings if name != "epochs"):
            words = _WORDS.get(name, name.replace("_", " "))
            title = f"{dataset}: {words}" if table["dataset"].nunique() > 1 else words[0].upper() + words[1:]
            parts += _by_value(f"sensitivity-{name}-{number}", title, words, name, mine, material)
    for number, (subject, mine) in enumerate(table.groupby("subject", sort=False)):
        if any(mine["settings"]) and mine["arm"].nunique() > max(2, mine["method"].nunique()):
            words = f"{subject[0]}, {subject[1]}: " if table["subject"].nunique() > 1 else ""
            parts += _all_settings(number, words, mine, material)
    return Section("sensitivity", "Sensitivity to settings", SENSITIVITY, parts)


def _by_value(id: str, title: str, words: str, name: str, table: Frame, material: Material) -> list[Part]:
    """The final error at each value of a setting, in lines of runs that differ in it alone."""
    own = table[[name in dict(settings) for settings in table["settings"]]]
    values = [dict(settings)[name] for settings in own["settings"]]
    names = [] if all(map(_A_NUMBER.fullmatch, values)) else list(dict.fromkeys(values))
    others = [" ".join("=".join(pair) for pair in settings if pair[0] != name) for settings in own["settings"]]
    places = [float(names.index(value) if names else value) for value in values]
    own = own[["method", "error"]].assign(budget=others, place=places, value=values)
    groups = own.groupby(["method", "budget", "place", "value"], sort=False)["error"]
    frame = groups.agg(error="mean", lowest="min", highest="max", seeds="count").reset_index()
    frame = frame[frame.groupby(["method", "budget"])["place"].transform("nunique") > 1]
    frame = frame.sort_values("place", kind="stable")
    return material.plot(id, title, frame, Axis("place", words, words=names), ERROR)


def _all_settings(number: int, about: str, table: Frame, material: Material) -> list[Part]:
    """Every epoch of every configuration, of all schedules and lengths: the question is which settings to choose."""
    cost, rows = "seconds" if len({run.hardware for run in table["run"]}) == 1 else "compute", []
    for _, mine in table.groupby(["arm"], sort=False):
        curve, words = Curve.mean([run.curve for run in mine["run"]]), " ".join(map("=".join, mine["settings"].iloc[0]))
        row = {"method": mine["method"].iloc[0], "budget": "", "settings": words}
        for epoch, (spent, error) in enumerate(zip(getattr(curve, cost), curve.errors, strict=True), 1):
            rows.append(row | {"epoch": epoch, cost: spent, "error": error})
    frame = pd.DataFrame(rows).sort_values([cost, "error"], kind="stable")
    frame["best"] = frame["error"] < frame["error"].cummin().shift(fill_value=float("inf"))
    lowest = frame["error"].min()
    frame = frame[frame["error"] <= max(_SHOWN_FROM * lowest, lowest + 0.02)]
    best = frame[frame["best"]].sort_values("error")
    cells = [
        [f"{row['method']} {row['settings']}", str(row["epoch"]), f"{row[cost]:.3g}", f"{row['error']:.2%}"]
        for row in best.head(_LISTED).to_dict("records")
    ]
    note = "A point per epoch, those of high errors left out. Something cheaper is better than the pale ones."
    edge = Line(list(best[cost]), list(best["error"]), width=1)
    title, heading = f"{about}All settings, and those that no other beats", ["settings", "epoch", cost, "error"]
    looks: dict[str, Any] = {"note": note, "besides": [edge], "joined": False}
    parts = material.plot(f"settings-{number}", title, frame, Axis(cost, cost), ERROR, **looks)
    return [*parts, Table(f"best-settings-{number}", f"{about}Settings that no other beats", heading, cells)]


# ---- how it was made

PROVENANCE = "The commands that made these runs, and what they ran on: enough to make them again."
_KEYS = ("date", "commit", "selective_backprop", "torch", "python", "machine", "cpu", "cores", "threads", "accelerator")


def provenance(comparisons: Sequence[Comparison]) -> Section:
    """Distinct commands and environments, with the number of runs of each."""
    environments = [run.environment for one in comparisons for run in one.runs]
    rows = []
    for title, runs in ((one.title, one.runs) for one in comparisons):
        columns: list[set[Any]] = [{run.seed for run in runs}, {run.epochs for run in runs if not run.is_baseline}]
        columns += [{run.data_hash for run in runs}]
        columns += [{str(run.recipe.get(name)) for run in runs} for name in ("batch_size", "lr")]
        rows.append([title, str(len(runs)), *(", ".join(map(str, sorted(column))) for column in columns)])
    heading = ["workload", "runs", "seeds", "epochs", "data (SHA-256)", "batch size", "learning rate"]
    machines = Counter(tuple(str(one.get(key, "unknown") or "none") for key in _KEYS) for one in environments)
    keys = [*(key.replace("_", "-") for key in _KEYS), "runs"]
    commands = [[text, str(count)] for text, count in Counter(map(command_of, environments)).items()]
    parts = [
        Table("runs", "Runs", heading, rows),
        Table("commands", "Commands", ["command", "runs"], commands),
        Table("environment", "Versions and hardware", keys, [[*key, str(count)] for key, count in machines.items()]),
    ]
    return Section("provenance", "How it was made", PROVENANCE, parts)


def command_of(environment: Mapping[str, Any]) -> str:
    """A command that can be typed in.

    >>> command_of({"command": ["__main__.py", "train", "--name", "a b"]})
    "selective-backprop train --name 'a b'"
    """
    words = environment.get("command") or []
    if not isinstance(words, list):
        return str(words)
    # Started as `python -m selective_backprop_lab`, a run only knows the name of its file.
    own = ["selective-backprop", *words[1:]] if words and words[0] == "__main__.py" else words
    return shlex.join(map(str, own)) or "unknown"
