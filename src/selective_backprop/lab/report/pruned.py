"""Which examples a pruning by scores leaves out, and which classes lose most.

# M = examples
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

import selective_backprop as sb
from selective_backprop.lab.report import ranking
from selective_backprop.lab.report.charts import by_label, choice, tooltip
from selective_backprop.lab.report.figures import Figure, Gallery, Part, Picture, Row, Spec, Text
from selective_backprop.lab.report.logs import Log
from selective_backprop.lab.study.diet import ClassScores, summarise, warning_about

FRACTIONS = (0.1, 0.25, 0.5, 0.75)
_LOWEST, _IN_A_ROW = 20, 10
_MOST_CLASSES = 24


def pruned_fraction(logs: Mapping[str, Log]) -> float:
    """The fraction that runs on a diet leave out, or else a quarter."""
    for log in logs.values():
        value = (log.run.config.get("options") or {}).get("prune")
        if log.run.method == "diet" and isinstance(value, (int, float)) and 0 < value < 1:
            return float(value)
    return 0.25


def classes_after(scores: ranking.Floats, names: list[str], fraction: float) -> list[ClassScores]:
    """How many examples of each class a pruning by the lowest scores leaves out."""
    classes = sorted(set(names))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = torch.tensor([numbers[name] for name in names])
    values = torch.from_numpy(scores)
    return summarise(values, sb.pruning.keep_after_pruning(values, fraction), labels, classes)


def pruned_parts(
    comparison: str,
    title: str,
    scores: ranking.Floats,
    fraction: float,
    name_of: Callable[[int], str],
    image_of: Callable[[int], str],
) -> list[Part]:
    """The examples with the lowest scores, the share that each class loses, and a warning if it is a few classes.

    Args:
        comparison: its id.
        title: name of the scores.
        scores: (M,)
        fraction: how much is left out.
        name_of, image_of: label and image of an example, "" where they are not known.
    """
    ids = ranking.lowest(scores, _LOWEST)
    parts: list[Part] = []
    if ids and image_of(ids[0]):
        pictures = [
            Picture(id, f"example {id}, labelled {name_of(id)}, score {scores[id]:.3f}", [], image_of(id)) for id in ids
        ]
        rows = {
            f"{start + 1} to {start + len(pictures[start : start + _IN_A_ROW])}": pictures[start : start + _IN_A_ROW]
            for start in range(0, len(pictures), _IN_A_ROW)
        }
        parts.append(
            Gallery(
                f"lowest-{comparison}", f"The {len(ids)} examples with the lowest scores ({title})", rows, comparison
            )
        )
    names = [name_of(id) for id in range(len(scores))]
    if not all(names) or len(set(names)) < 2:
        return parts
    found = {at: classes_after(scores, names, at) for at in sorted({*FRACTIONS, fraction})}
    if warning := warning_about(found[fraction], fraction):
        parts.insert(0, Text(f"**Some classes lose far more than others.** {warning}", comparison))
    return [*parts, _by_class(comparison, title, found, fraction)]


def class_rows(found: Mapping[float, list[ClassScores]], fraction: float) -> list[Row]:
    """Share of each class that is left out, at several fractions; the class that loses most at `fraction` first."""
    order = {row.name: -row.pruned / row.examples for row in found[fraction]}
    shown = sorted(order, key=lambda name: (order[name], name))[:_MOST_CLASSES]
    return [
        {
            "class": row.name,
            "left out": f"{at:.0%}",
            "share": row.pruned / row.examples,
            "examples": row.examples,
            "overall": at,
        }
        for at, rows in found.items()
        for row in sorted(rows, key=lambda row: (order[row.name], row.name))
        if row.name in shown
    ]


def _by_class(comparison: str, title: str, found: Mapping[float, list[ClassScores]], fraction: float) -> Figure:
    rows = [row | {"run": row["class"]} for row in class_rows(found, fraction)]
    labels = list(dict.fromkeys(row["class"] for row in rows))
    y, lookup, height = by_label(labels)
    options = list(dict.fromkeys(row["left out"] for row in rows))
    share: Spec = {
        "field": "share",
        "type": "quantitative",
        "title": "share of the class that is left out",
        "scale": {"domain": [0, 1]},
        "axis": {"format": ".0%"},
    }
    spec: Spec = {
        "params": [choice("chosen", options, "left out of all examples", f"{fraction:.0%}")],
        "transform": [{"filter": "datum['left out'] === chosen"}, lookup],
        "height": height,
        "layer": [
            {
                "mark": {"type": "bar", "color": "#55637a"},
                "encoding": {
                    "y": y,
                    "x": share,
                    "tooltip": tooltip(of="class", left_out="share|.1%", examples="examples"),
                },
            },
            {
                "mark": {"type": "rule", "strokeDash": [3, 3]},
                "encoding": {"x": {"aggregate": "mean", "field": "overall", "type": "quantitative"}},
            },
        ],
    }
    most, least = (end(found[fraction], key=lambda row: row.pruned / row.examples) for end in (max, min))
    alt = (
        f"Of {fraction:.0%} left out, {most.name} loses {most.pruned / most.examples:.0%} and {least.name} "
        f"{least.pruned / least.examples:.0%}."
    )
    cut = f" The {len(labels)} classes that lose most are shown." if len(found[fraction]) > len(labels) else ""
    note = f"The dashed line is what every class would lose if all lost alike.{cut}"
    heading = f"What each class loses if {title} prunes the lowest"
    return Figure(f"pruned-classes-{comparison}", heading, alt, spec, rows, comparison, note=note)
