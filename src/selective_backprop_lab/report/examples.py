"""What the files beside the records say: what was selected, gradients, confidence, and the examples themselves.

# M = examples
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import selective_backprop as sb
from selective_backprop.dynamics import audit
from selective_backprop.dynamics.log import FILE
from selective_backprop_lab.probes import read_confidence, read_gradients
from selective_backprop_lab.report.draw import Axis, Line, bars
from selective_backprop_lab.report.images import Examples
from selective_backprop_lab.report.parts import Cell, Figure, Material, Notes, Part, Table, share
from selective_backprop_lab.report.runs import Comparison, Frame, Run, method_and_budget
from selective_backprop_lab.runs.ledger_log import LedgerHistory, read_ledger_log
from selective_backprop_lab.study.agreement import overlap
from selective_backprop_lab.study.diet import summarise, warning_about

Logs = dict[str, tuple[Run, LedgerHistory]]
"""Ledgers after each epoch, by label."""
EPOCH, SELECTIVE = Axis("epoch", "epoch", whole=True), "selective_backprop"


def seen(
    comparison: Comparison, material: Material, kind: str, files: str, read: Callable[[Path], Any], once: bool = False
) -> Iterator[tuple[str, Run, Any]]:
    """What runs wrote beside their records, without baselines and damaged files; `once`: of one seed per label."""
    for label, runs in comparison.by_label.items():
        for run in runs if not runs[0].is_baseline else ():
            found = any(run.path.glob(files))
            content = material.read(f"{kind} of {label}, seed {run.seed}", read, run.path) if found else None
            if content is not None:
                yield label, run, content
                if once:
                    break


_MOST_LOGS = 8  # a sweep has many runs, and their ledgers would fill the page


@functools.lru_cache(maxsize=1)  # two sections of a workload want them
def read_logs(comparison: Comparison, material: Material) -> Logs:
    """Ledgers by label. Takes the first seed that has one, since seeds may have other examples."""
    found = seen(comparison, material, "ledger", "ledger/epoch-*.pt", read_ledger_log, once=True)
    return {label: (run, history) for label, run, history in islice(found, _MOST_LOGS)}


# ---- what was selected

SELECTION = "Selection is at work where few candidates are trained on, and those of high loss have the highest chance."
_QUANTILES, _FLOOR = 31, 1e-4  # smaller losses are shown at the floor, or they would take up most of the axis
_BETAS = (0.5, 1.0, 2.0, 3.0, 5.0)


def selection(comparison: Comparison, material: Material) -> list[Part]:
    """Shares, chances and losses of a workload."""
    frame = comparison.epochs[["run", "method", "budget", "epoch", "selectivity"]]
    frame = frame if frame["selectivity"].round(6).nunique() > 1 else frame[:0]
    y = share("selectivity", "share of candidates trained on")
    parts = material.plot("selectivity", "Achieved selectivity", frame, EPOCH, y)
    own: dict[float, dict[str, None]] = {}
    for label, runs in comparison.by_label.items():
        if runs[0].method == SELECTIVE:
            own.setdefault(beta_of(runs[0]), {})[method_and_budget(label)[0]] = None
    names = {beta: f"beta {beta:g}" + (f" ({', '.join(own[beta])})" if beta in own else "") for beta in {*_BETAS, *own}}
    places = [(i / 40) ** 2 for i in range(41)] if own else []  # most of them where lines with beta < 1 are steep
    rows = [(names[beta], at, at**beta, "") for beta in sorted(names) for at in places]
    frame = pd.DataFrame(rows, columns=["beta", "percentile", "chance", "budget"])
    x, y = share("percentile", "percentile of the loss among recent losses"), share("chance", "chance of selection")
    note = "Lines are percentile ^ beta, by which a share of 1 / (beta + 1) is selected. Those of these runs are named."
    title = "Chance of selection by percentile of the loss"
    parts += material.plot("chance-by-percentile", title, frame, x, y, name="beta", note=note)
    return [*parts, *_ledgers(read_logs(comparison, material), material)]


def beta_of(run: Run) -> float:
    """SB's exponent at the selectivity of this run."""
    selectivity = run.config.get("selectivity", 1 / 3)
    known = isinstance(selectivity, (int, float)) and 0.001 <= selectivity <= 1
    return round(sb.functional.beta_from_selectivity(selectivity if known else 1 / 3), 3)


def _ledgers(logs: Logs, material: Material) -> list[Part]:
    """Losses with the mean chance of selection around each, and chances of single examples, method by method."""
    losses, singles = [], []
    beta = next((beta_of(run) for run, _ in logs.values() if run.method == SELECTIVE), 2.0)
    # SB comes first: others may have little to show.
    for label, (run, history) in sorted(logs.items(), key=lambda item: item[1][0].method != SELECTIVE):
        for epoch in sorted({0, len(history.loss) // 2, len(history.loss) - 1}):
            one = pd.DataFrame({"loss": history.loss[epoch], "chance": history.probability[epoch]}).astype(float)
            one = one.dropna(subset="loss").sort_values("loss", kind="stable", ignore_index=True)
            one["lower"] = (one.index + 0.5) / max(1, len(one))
            bins = one.groupby(one.index * min(_QUANTILES, len(one)) // max(1, len(one)))
            rows = bins[["lower", "chance"]].mean().assign(loss=bins["loss"].median().clip(lower=_FLOOR))
            losses.append(rows.assign(run=label, epoch=f"after epoch {epoch + 1}"))
        chances = pd.DataFrame(history.probability.astype(float))
        if run.method == "traditional":  # it selects nothing, and gets what SB would have given
            label, chances = f"{label} (would-be, beta {beta:.3g})", would_be_chances(history, beta)
        one = chances[sorted({i * (chances.shape[1] - 1) // 4 for i in range(5)})]
        one = one.assign(run=label, epoch=chances.index + 1)
        singles.append(one.melt(["run", "epoch"], var_name="example", value_name="chance").dropna())
    if not logs:
        return []
    both = {"lower": "examples with a lower loss", "chance": "chance of selection"}
    loss = pd.concat(losses).rename(columns=both)
    loss = loss.melt(["run", "epoch", "loss"], list(both.values()), "kind", "value").dropna()
    single = pd.concat(singles).assign(budget="")
    single = single if single["chance"].round(6).nunique() > 1 else single[:0]
    x, y = Axis("loss", "loss", log=True), share("value", "share or chance")
    looks: dict[str, Any] = {"choose": "run", "chosen": "method"}
    looks |= {"note": "Whole lines move left as losses fall; dashed ones show whom selection prefers."}
    kinds = {"name": "epoch", "style": "kind", "colors": "order"}
    parts = material.plot("losses", "Losses, and chances of selection", loss, x, y, **looks | kinds)
    looks |= {"note": "Would-be chances are what SB would give by the losses of a run that trains on everything."}
    title, y = "Chance of selection of single examples", share("chance", "chance of selection")
    return parts + material.plot("examples", title, single, EPOCH, y, name="example", marker="circle", **looks)


def would_be_chances(history: LedgerHistory, beta: float) -> Frame:
    """(epochs, M) chances that SB would have given, by percentiles among all losses at the end of each epoch."""
    return pd.DataFrame(history.loss.astype(float)).rank(axis=1, method="max", pct=True) ** beta


# ---- probes

GRADIENTS = "How well the gradient of a part of a batch agrees with the whole batch's: could it stand in for it?"
CONFIDENCE = "From the least to the most confident test example: further up on the left is better on hard examples."
_BINS = 40


def gradient_fidelity(comparison: Comparison, material: Material) -> list[Part]:
    """How well gradients of parts of batches agree with those of the whole batches, as means over batches and seeds."""
    rows: list[Frame] = []
    for label, _, one in seen(comparison, material, "gradients", "probes/gradients-*.pt", read_gradients):
        for i, epoch in enumerate(one.epochs):
            row = {"fraction": one.fraction[i].astype(float).round(6), "cosine": one.cosine[i]}
            row |= {"part": np.where(one.highest[i], "highest losses", "random"), "equal signs": one.equal_signs[i]}
            rows.append(pd.DataFrame({"run": label, "epoch": f"after epoch {epoch + 1}", **row}))
    if not rows:
        return []
    frame = pd.concat(rows).groupby(["run", "epoch", "part", "fraction"], sort=False).mean().reset_index()
    frame, x = frame.sort_values(["part", "fraction"], kind="stable"), share("fraction", "part of the batch")
    looks: dict[str, Any] = {"choose": "run", "chosen": "method", "name": "part", "style": "epoch", "colors": "phase"}
    title, y = "Cosine similarity with the whole batch's gradient", Axis("cosine", "cosine")
    parts = material.plot("gradients-cosine", title, frame, x, y, marker="circle", **looks)
    title, y = "Components with the same sign", Axis("equal signs", "equal signs", percent=True)
    return parts + material.plot("gradients-equal-signs", title, frame, x, y, marker="circle", **looks)


def confidence(comparison: Comparison, material: Material) -> list[Part]:
    """Confidence and accuracy by percentile, pooled over seeds, after the epoch that the reader chooses."""
    pooled: dict[tuple[int, str], list[Frame]] = {}
    for label, _, one in seen(comparison, material, "confidence", "probes/confidence-*.pt", read_confidence):
        for i, epoch in enumerate(one.epochs):
            both = pd.DataFrame({"confidence": one.confidence[i], "accuracy": one.correct[i]}).astype(float)
            pooled.setdefault((epoch + 1, label), []).append(both)
    rows = []
    for (epoch, label), frames in sorted(pooled.items(), key=lambda item: item[0][0]):
        both = pd.concat(frames).sort_values("confidence", kind="stable", ignore_index=True)
        means = both.groupby(both.index * min(_BINS, len(both)) // len(both)).mean()
        method, budget = method_and_budget(label)
        place = {"epoch": epoch, "percentile": (means.index + 0.5) / len(means)}
        rows.append(means.assign(run=label, method=method, budget=budget, **place))
    if not rows:
        return []
    epochs, x = sorted({epoch for epoch, _ in pooled}), share("percentile", "test examples, from the least confident")
    looks: dict[str, Any] = {"choose": "epoch", "chosen": "after epoch", "marker": ""}
    looks["first"] = str(epochs[(len(epochs) - 1) // 2])  # at the end all are alike
    title, y, frame = "Confidence in the true class", share("confidence", "confidence"), pd.concat(rows)
    parts = material.plot("confidence-confidence", title, frame, x, y, **looks)
    title, y = "Accuracy at each percentile of confidence", share("accuracy", "accuracy")
    return parts + material.plot("confidence-accuracy", title, frame, x, y, **looks)


# ---- the data

AUDIT = "Easy: a high confidence that hardly changes. Ambiguous: it changes most. Wrong labels are among the hard ones."
DATA = "Easy examples are learned early, hard ones keep a high loss, and those with wrong labels are among the hardest."
_LISTED, _PICTURED, _IN_A_ROW, _MOST_CLASSES = 24, 20, 6, 24
_KINDS = ("easy", "ambiguous", "hard")


def your_data(comparison: Comparison, material: Material) -> list[Part]:
    """Classes and likely wrong labels, by the first run with dynamics."""
    run = next((run for run in comparison.runs if (run.path / FILE).exists()), None)
    found = None if run is None else material.read(f"dynamics of {run.label}, seed {run.seed}", audit, run.path)
    if run is None or found is None or not found.num_classes:
        return []
    examples = Examples.of(run, len(found), material.load, material.images)
    classes = [
        [examples.class_name(row["group"]), f"{row['examples']:,}", f"{row['wrong']:.1%}", f"{row['confidence']:.2f}"]
        + [f"{row[kind]:.0%}" for kind in _KINDS]
        for row in found.by_class()
    ]
    heading = ["class", "examples", "wrong labels", "confidence", *_KINDS]
    parts: list[Part] = [Table("classes", f"Your data by class ({run.label}, seed {run.seed})", heading, classes)]
    if len(ids := found.suspects()):
        suspects: list[list[str | Cell]] = []
        for id in ids[:_LISTED]:
            names = [examples.class_name(int(one[id])) for one in (found.label, found.suggested)]
            suspects.append([examples.show(int(id)), *names, f"{found.wrong[id]:.0%}"])
        title, heading = (
            f"{len(ids):,} labels that are probably wrong",
            ["example", "label", "suggested", "probability"],
        )
        parts.append(Table("wrong", title, heading, suspects, "By the dynamics of one run; see the guide on audits."))
    return parts


def about_data(comparison: Comparison, material: Material) -> list[Part]:
    """Galleries, and what scores would prune. A data set is shown once: a sweep has many workloads that are alike."""
    logs, dataset = read_logs(comparison, material), str(comparison.runs[0].recipe["dataset"])
    if not logs or dataset in material.pictured:
        return []
    material.pictured.add(dataset)
    # Traditional has losses from every epoch, and no selection has biased them.
    run, history = logs.get(comparison.reference or "") or next(iter(logs.values()))
    examples, parts = Examples.of(run, history.loss.shape[1], material.load, material.images), []
    losses = pd.DataFrame(history.loss.astype(float)).mean().to_numpy()
    for title, sign in (("Easiest", 1), ("Hardest", -1)) if examples.data else ():
        rows: list[list[str | Cell]] = []
        for label, name in list(enumerate(examples.data.classes if examples.data else ()))[:10]:
            mine = lowest(np.where(examples.labels == label, sign * losses, np.nan), _IN_A_ROW)
            rows.append([f"{label}: {name}" if name != str(label) else name, *map(examples.show, mine)])
        words = f"{title} examples of each class, by mean loss ({run.label}, seed {run.seed})"
        parts.append(Table(title.lower(), words, [], rows))
    return [*parts, *_pruning(logs, examples, material)]


def lowest(values: Any, count: int) -> list[int]:
    """Ids of the lowest values, lowest first. Examples without a value are left out.

    >>> lowest(np.array([-0.1, np.nan, -0.7, -0.7]), 3)
    [2, 3, 0]
    """
    return [int(i) for i in pd.Series(values).dropna().sort_values(kind="stable").index[:count]]


def _pruning(logs: Logs, examples: Examples, material: Material) -> list[Part]:
    """Scores against what selection used, scores against each other, and what they would leave out."""
    read = {file.stem: sb.pruning.load_scores(file).double().numpy() for file in material.scores}
    size, parts = next(iter(logs.values()))[1].loss.shape[1], []
    scores = [(name, values) for name, values in read.items() if len(values) == size]
    if not scores:
        return []
    name, values = scores[0]
    methods = [one for one in logs.values() if one[0].method not in ("traditional", "diet")]
    used = next(iter(sorted(methods, key=lambda one: one[0].method != SELECTIVE)), None)
    if used is not None and used[1].loss.shape[1] == size:
        times = times_used(used[1])
        title = f"What {name} would prune, and what {used[0].label} uses least"
        parts += _overlap("overlap", title, values, times, material)
        both = pd.Series(values).rank(method="first") + pd.Series(times).rank(method="first")
        cells: list[list[str | Cell]] = []
        for id in lowest(both, _LISTED):
            cells.append([examples.show(id), examples.label_of(id), f"{values[id]:.3f}", str(int(times[id]))])
        heading = ["example", "label", f"score ({name})", "times trained on"]
        parts.append(Table("combined", "Lowest combined rank: what both would leave out first", heading, cells))
    chosen = ((run.config.get("options") or {}).get("prune") for run, _ in logs.values() if run.method == "diet")
    fraction = next((float(one) for one in chosen if isinstance(one, (int, float)) and 0 < one < 1), 0.25)
    parts += pruned_parts(name, values, fraction, examples)
    for number, ((one, a), (other, b)) in enumerate(pairwise(scores)):
        parts += _overlap(f"overlap-scores-{number}", f"What {one} and {other} would prune", a, b, material)
    return parts


def times_used(history: LedgerHistory) -> Any:
    """(M,) how often each example was trained on. Among equals, the one with the lower mean loss ranks first."""
    losses = pd.DataFrame(history.loss.astype(float)).mean().fillna(0).to_numpy()
    return history.selected.astype(float).sum(0) + losses / (losses.max() + 1)


def _overlap(id: str, title: str, one: Any, other: Any, material: Material) -> list[Part]:
    """Chart of how many of the lowest by one ranking are also lowest by the other. Chance is the diagonal."""
    a, b = torch.from_numpy(one), torch.from_numpy(other)
    at = [i / 20 for i in range(1, 20) if round(i / 20 * int((~(a.isnan() | b.isnan())).sum())) > 0]
    frame = pd.DataFrame({"fraction": at, "overlap": [overlap(a, b, fraction) for fraction in at]})
    looks: dict[str, Any] = {"name": "kind", "colors": "phase", "marker": "circle"}
    looks["note"] = "Above the dashed line, both would leave out the same examples more often than by chance."
    x, y, chance = (
        share("fraction", "share of the data left out"),
        share("overlap", "overlap"),
        Line(at, at, dash="3 3"),
    )
    return material.plot(id, title, frame.assign(kind="", budget=""), x, y, besides=[chance], **looks)


def pruned_parts(name: str, scores: Any, fraction: float, examples: Examples) -> list[Part]:
    """The examples with the lowest scores, the share that each class loses, and a warning if it is a few classes."""
    if examples.data is None or examples.labels is None:
        return []
    values, parts = torch.from_numpy(scores), []
    keep, labels = sb.pruning.keep_after_pruning(values, fraction), torch.from_numpy(examples.labels)
    found = summarise(values, keep, labels, examples.data.classes)
    if warning := warning_about(found, fraction):
        words = f"**Some classes lose far more than others.** {warning}"
        parts.append(Notes("class-warning", "Before you prune", [("", "", words)], "alerts"))
    shown = [examples.show(id, f", score {scores[id]:.3f}") for id in lowest(scores, _PICTURED)]
    rows = [[f"from {at + 1}", *shown[at : at + _IN_A_ROW]] for at in range(0, len(shown), _IN_A_ROW)]
    lost = {one.name: one.pruned / one.examples for one in sorted(found, key=lambda one: -one.pruned / one.examples)}
    left_out = [(word, {"": value}, False) for word, value in lost.items()][:_MOST_CLASSES]
    svg = bars(left_out, {"": "var(--phase2)"}, Axis("", "share of the class that is left out", percent=True))
    cut = f" The {_MOST_CLASSES} classes that lose most are shown." if len(lost) > _MOST_CLASSES else ""
    note = f"If all lost alike, each would lose {fraction:.0%}.{cut}"
    title, data = f"What each class loses if {name} prunes the lowest {fraction:.0%}", pd.Series(lost, name="left out")
    lowest_title = f"The {len(shown)} examples with the lowest scores ({name})"
    figure = Figure("pruned-classes", title, {"": svg}, data.rename_axis("class").reset_index(), note)
    return [*parts, Table("lowest", lowest_title, [], rows), figure]
