"""What a pruning by scores leaves out: how well two rankings agree on it, and which examples and classes are lost.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

import selective_backprop as sb
from selective_backprop_lab.report.charts import bars, layer, share_axis
from selective_backprop_lab.report.figures import Figure, Line, Notes, Part, Row, Table
from selective_backprop_lab.report.images import Examples
from selective_backprop_lab.report.logs import Floats, Log, combined_rank, lowest, overlaps, times_used
from selective_backprop_lab.report.material import Material
from selective_backprop_lab.report.theme import PHASES
from selective_backprop_lab.study.diet import ClassScores, summarise, warning_about

_LISTED, _PICTURED, _IN_A_ROW, _MOST_CLASSES = 24, 20, 8, 24


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking of examples by (M,) values. The lowest are left out first."""

    name: str
    values: Floats


def pruning_parts(logs: Mapping[str, Log], examples: Examples, material: Material) -> list[Part]:
    """Scores against what selection used, scores against each other, and what they would leave out.

    Args:
        logs: ledgers of the runs, by label.
        examples: the data.
        material: has the files of scores. Those of another data set are left out.
    """
    size = next(iter(logs.values())).num_examples
    read = {file.stem: sb.pruning.load_scores(file).double().numpy() for file in material.scores}
    scores = [Ranking(name, values) for name, values in read.items() if len(values) == size]
    if not scores:
        return []
    parts: list[Part] = []
    used = next((log for log in logs.values() if log.run.method == "selective_backprop"), None)
    used = used or next((log for log in logs.values() if log.run.method not in ("traditional", "diet")), None)
    if used is not None and used.num_examples == size:
        least = Ranking(f"what {used.run.label} uses least", times_used(used))
        title = f"What {scores[0].name} would prune, and {least.name}"
        parts += [_overlap("overlap", title, scores[0], least), _lowest_combined(scores[0], least, examples)]
    parts += pruned_parts(scores[0], _pruned_fraction(logs), examples)
    for number, (one, other) in enumerate(pairwise(scores)):
        title = f"What {one.name} and {other.name} would prune"
        parts.append(_overlap(f"overlap-scores-{number}", title, one, other))
    return parts


def _pruned_fraction(logs: Mapping[str, Log]) -> float:
    """The fraction that runs on a diet leave out, or else a quarter."""
    for log in logs.values():
        value = (log.run.config.get("options") or {}).get("prune")
        if log.run.method == "diet" and isinstance(value, (int, float)) and 0 < value < 1:
            return float(value)
    return 0.25


def _overlap(id: str, title: str, one: Ranking, other: Ranking) -> Figure:
    """Chart of how many of the lowest by one ranking are also lowest by the other. Chance is the diagonal."""
    rows: list[Row] = [
        {"fraction": at, "overlap": share, "by chance": at} for at, share in overlaps(one.values, other.values)
    ]
    place = {
        "x": share_axis("fraction", "share of the data that is left out"),
        "y": share_axis("overlap", "overlap"),
    }
    chance = place | {"y": place["y"] | {"field": "by chance"}}
    layers = [
        layer("line", chance, strokeWidth=1, strokeDash=[3, 3], color=PHASES[1]),
        layer("line", place, color=PHASES[0]),
        layer("point", place, color=PHASES[0]),
    ]
    note = "Above the dashed line, both would leave out the same examples more often than by chance."
    return Figure(id, title, {"layer": layers}, rows, note)


def _lowest_combined(one: Ranking, other: Ranking, examples: Examples) -> Table:
    ids = lowest(combined_rank(one.values, other.values), _LISTED)
    cells: list[Line] = [
        [examples.show(id), examples.label_of(id), f"{one.values[id]:.3f}", str(int(other.values[id]))] for id in ids
    ]
    heading = ["example", "label", f"score ({one.name})", "times trained on"]
    return Table("combined", "Lowest combined rank: what both would leave out first", heading, cells)


def pruned_parts(scores: Ranking, fraction: float, examples: Examples) -> list[Part]:
    """The examples with the lowest scores, the share that each class loses, and a warning if it is a few classes."""
    if examples.data is None or examples.labels is None:
        return []
    ids, values = lowest(scores.values, _PICTURED), torch.from_numpy(scores.values)
    keep = sb.pruning.keep_after_pruning(values, fraction)
    found = summarise(values, keep, torch.from_numpy(examples.labels), examples.data.classes)
    parts: list[Part] = []
    if warning := warning_about(found, fraction):
        words = f"**Some classes lose far more than others.** {warning}"
        parts.append(Notes("class-warning", "Before you prune", [("", "", words)], "alerts"))
    shown = [examples.show(id, f", score {scores.values[id]:.3f}") for id in ids]
    rows: list[Line] = [[f"from {at + 1}", *shown[at : at + _IN_A_ROW]] for at in range(0, len(shown), _IN_A_ROW)]
    title = f"The {len(ids)} examples with the lowest scores ({scores.name})"
    return [*parts, Table("lowest", title, [], rows), _by_class(scores.name, found, fraction)]


def _by_class(name: str, found: list[ClassScores], fraction: float) -> Figure:
    """Share of each class that is left out, the class that loses most first."""
    rows: list[Row] = [
        {"run": one.name, "left out": one.pruned / one.examples, "examples": one.examples} for one in found
    ]
    shown = sorted(rows, key=lambda row: (-row["left out"], row["run"]))[:_MOST_CLASSES]
    spec = bars(shown, share_axis("left out", "share of the class that is left out"))
    cut = f" The {len(shown)} classes that lose most are shown." if len(rows) > len(shown) else ""
    title = f"What each class loses if {name} prunes the lowest {fraction:.0%}"
    note = f"If all lost alike, each would lose {fraction:.0%}.{cut}"
    return Figure("pruned-classes", title, spec, shown, note)
