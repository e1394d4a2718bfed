"""What a pruning by scores leaves out: how well two rankings agree on it, and which examples and classes are lost.

# M = examples
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

import selective_backprop as sb
from selective_backprop.lab.report.charts import axis, bars, layer, tooltip
from selective_backprop.lab.report.figures import Figure, Gallery, Part, Picture, Row, Spec, Table, Text, rounded
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.logs import Floats, Log, combined_rank, lowest, overlaps, times_used
from selective_backprop.lab.report.theme import PHASES
from selective_backprop.lab.study.diet import ClassScores, summarise, warning_about

_LISTED, _PICTURED, _IN_A_ROW, _MOST_CLASSES = 24, 20, 10, 24
FRACTIONS = (0.1, 0.25, 0.5, 0.75)
Words = Callable[[int], str]
"""Gives the label or the image of an example; "" where it is not known."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking of examples by (M,) values. The lowest are left out first."""

    name: str
    values: Floats


def pruning_parts(
    comparison: str,
    logs: Mapping[str, Log],
    files: Sequence[Path],
    name_of: Words,
    image_of: Words,
    left_out: LeftOut,
) -> list[Part]:
    """Scores against what selection used, scores against each other, and what they would leave out.

    Args:
        comparison: its id.
        logs: of its runs, by label.
        files: scores by `diet score`, beside those that the runs used.
        name_of, image_of: label and image of an example.
        left_out: takes note of scores that the runs name and that cannot be read.
    """
    size = next(iter(logs.values())).num_examples
    scores = _read_scores(logs, files, size, left_out)
    if not scores:
        return []
    parts: list[Part] = []
    used = next((log for log in logs.values() if log.run.method == "selective_backprop"), None)
    used = used or next((log for log in logs.values() if log.run.method not in ("traditional", "diet")), None)
    if used is not None and used.num_examples == size:
        least = Ranking(f"what {used.run.label} uses least", times_used(used))
        title = f"What {scores[0].name} would prune, and {least.name}"
        parts.append(_overlap(f"overlap-{comparison}", title, scores[0], least, comparison))
        parts.append(_lowest_combined(comparison, scores[0], least, name_of, image_of))
    parts += pruned_parts(comparison, scores[0], _pruned_fraction(logs), name_of, image_of)
    for number, (one, other) in enumerate(pairwise(scores)):
        title = f"What {one.name} and {other.name} would prune"
        parts.append(_overlap(f"overlap-scores-{number}-{comparison}", title, one, other, comparison))
    return parts


def _read_scores(logs: Mapping[str, Log], files: Sequence[Path], size: int, left_out: LeftOut) -> list[Ranking]:
    """Scores from the given files, then those of runs on a diet. Missing files and other data sets are left out."""
    options = [log.run.config.get("options") or {} for log in logs.values()]
    named = [Path(str(option["scores"])) for option in options if "scores" in option]
    scores: dict[Path, torch.Tensor | None] = {file: sb.pruning.load_scores(file) for file in files}
    for file in named:
        if file not in scores and file.exists():
            scores[file] = left_out.unless_damaged(f"scores {file}", functools.partial(sb.pruning.load_scores, file))
    return [
        Ranking(file.stem, values.double().numpy())
        for file, values in scores.items()
        if values is not None and len(values) == size
    ]


def _pruned_fraction(logs: Mapping[str, Log]) -> float:
    """The fraction that runs on a diet leave out, or else a quarter."""
    for log in logs.values():
        value = (log.run.config.get("options") or {}).get("prune")
        if log.run.method == "diet" and isinstance(value, (int, float)) and 0 < value < 1:
            return float(value)
    return 0.25


def _overlap(id: str, title: str, one: Ranking, other: Ranking, comparison: str) -> Figure:
    """Chart of how many of the lowest by one ranking are also lowest by the other. Chance is the diagonal."""
    rows: list[Row] = [
        {"fraction": at, "overlap": share, "chance": at} for at, share in overlaps(one.values, other.values)
    ]
    place = {
        "x": axis("fraction", "share of the data that is left out", format=".0%", domain=[0, 1]),
        "y": axis("overlap", "overlap", format=".0%", domain=[0, 1]),
    }
    chance = [{"fraction": at, "overlap": at, "text": "by chance" if at == 0.5 else ""} for at in (0, 0.5, 1)]
    diagonal: Spec = {"data": {"values": chance}}
    tips = {"tooltip": tooltip(left_out="fraction|.0%", overlap="overlap|.1%")}
    layers = [
        layer("line", place, strokeWidth=1, strokeDash=[3, 3], color=PHASES[1]) | diagonal,
        layer("text", place | {"text": {"field": "text"}}, align="left", dx=6, dy=10) | diagonal,
        layer("line", place, color=PHASES[0]),
        layer("point", place | tips, color=PHASES[0]),
    ]
    alt = "; ".join(f"at {row['fraction']:.0%} {row['overlap']:.0%}" for row in rows if row["fraction"] in FRACTIONS)
    note = "Above the diagonal, both would leave out the same examples more often than by chance."
    return Figure(id, title, f"Overlap {alt}.", {"layer": layers}, rows, comparison, note=note)


def _lowest_combined(comparison: str, one: Ranking, other: Ranking, name_of: Words, image_of: Words) -> Table:
    values = combined_rank(one.values, other.values)
    ids = lowest(values, len(values))
    columns: dict[str, Words] = {"id": str}
    columns |= {word: show for word, show in {"image": image_of, "label": name_of}.items() if show(ids[0])}
    columns[f"score ({one.name})"] = lambda id: f"{one.values[id]:.3f}"
    columns["times trained on"] = lambda id: str(int(other.values[id]))
    cells = [[show(id) for show in columns.values()] for id in ids[:_LISTED]]
    every = [
        [id, name_of(id), rounded(float(one.values[id])), int(other.values[id]), rounded(float(values[id]))]
        for id in ids
    ]
    exported = ["id", "label", f"score ({one.name})", "times trained on", "combined rank"], every
    title = "Lowest combined rank: what both would leave out first"
    note = "All examples, in this order, are in the CSV file of --export."
    return Table(f"combined-{comparison}", title, list(columns), cells, comparison, note, exported)


def pruned_parts(comparison: str, scores: Ranking, fraction: float, name_of: Words, image_of: Words) -> list[Part]:
    """The examples with the lowest scores, the share that each class loses, and a warning if it is a few classes."""
    ids, values = lowest(scores.values, _PICTURED), scores.values
    parts: list[Part] = []
    if ids and image_of(ids[0]):
        pictures = [
            Picture(id, f"example {id}, labelled {name_of(id)}, score {values[id]:.3f}", image_of(id)) for id in ids
        ]
        groups = [pictures[start : start + _IN_A_ROW] for start in range(0, len(pictures), _IN_A_ROW)]
        rows = {f"from {number * _IN_A_ROW + 1}": group for number, group in enumerate(groups)}
        title = f"The {len(ids)} examples with the lowest scores ({scores.name})"
        parts.append(Gallery(f"lowest-{comparison}", title, rows, comparison))
    names = [name_of(id) for id in range(len(values))]
    if not all(names) or len(set(names)) < 2:
        return parts
    found = _classes_after(values, names, fraction)
    if warning := warning_about(found, fraction):
        parts.insert(0, Text(f"**Some classes lose far more than others.** {warning}", comparison))
    return [*parts, _by_class(comparison, scores.name, found, fraction)]


def _classes_after(scores: Floats, names: list[str], fraction: float) -> list[ClassScores]:
    """How many examples of each class a pruning by the lowest scores leaves out."""
    classes = sorted(set(names))
    numbers = {name: number for number, name in enumerate(classes)}
    labels, values = torch.tensor([numbers[name] for name in names]), torch.from_numpy(scores)
    return summarise(values, sb.pruning.keep_after_pruning(values, fraction), labels, classes)


def _by_class(comparison: str, title: str, found: list[ClassScores], fraction: float) -> Figure:
    """Share of each class that is left out, the class that loses most first."""
    rows: list[Row] = [
        {"run": row.name, "share": row.pruned / row.examples, "examples": row.examples, "overall": fraction}
        for row in found
    ]
    rows.sort(key=lambda row: (-row["share"], row["run"]))
    shown = rows[:_MOST_CLASSES]
    share = axis("share", "share of the class that is left out", format=".0%", domain=[0, 1])
    tips = tooltip(of="run", left_out="share|.1%", examples="examples")
    overall: Spec = {"x": {"aggregate": "mean", "field": "overall", "type": "quantitative"}}
    overall |= {"y": {"value": 0}, "y2": {"value": "height"}}
    spec = bars(
        [row["run"] for row in shown],
        {},
        layer("bar", {"x": share, "tooltip": tips}, color="#55637a"),
        layer("rule", overall, strokeDash=[3, 3]),
    )
    most, least = rows[0], rows[-1]
    alt = (
        f"Of {fraction:.0%} left out, {most['run']} loses {most['share']:.0%} and {least['run']} {least['share']:.0%}."
    )
    cut = f" The {len(shown)} classes that lose most are shown." if len(rows) > len(shown) else ""
    note = f"The dashed line is what every class would lose if all lost alike.{cut}"
    heading = f"What each class loses if {title} prunes the lowest {fraction:.0%}"
    return Figure(f"pruned-classes-{comparison}", heading, alt, spec, shown, comparison, note=note)
