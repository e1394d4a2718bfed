"""How well two rankings of the same examples agree on what can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import selective_backprop as sb
from selective_backprop.lab.report import ranking
from selective_backprop.lab.report.charts import axis, tooltip
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Figure, Part, Spec, Table, rounded
from selective_backprop.lab.report.logs import Log
from selective_backprop.lab.report.pruned import pruned_fraction, pruned_parts
from selective_backprop.lab.report.theme import PHASES

_LISTED = 24


@dataclass(frozen=True, eq=False)
class Ranking:
    """A ranking of examples by (M,) values. The lowest are left out first."""

    name: str
    values: ranking.Floats


def overlap_parts(
    comparison: Comparison,
    logs: Mapping[str, Log],
    score_files: Sequence[Path],
    name_of: Callable[[int], str],
    image_of: Callable[[int], str],
) -> list[Part]:
    """Scores against what selection used, scores against each other, and what both would leave out first."""
    if not logs:
        return []
    size = next(iter(logs.values())).num_examples
    scores = _read_scores(logs, score_files, size)
    if not scores:
        return []
    parts: list[Part] = []
    used = next((log for log in logs.values() if log.run.method == "selective_backprop"), None)
    used = used or next((log for log in logs.values() if log.run.method not in ("traditional", "diet")), None)
    if used is not None and used.num_examples == size:
        least = Ranking(f"what {used.run.label} uses least", ranking.times_used(used))
        title = f"What {scores[0].name} would prune, and {least.name}"
        parts.append(overlap_chart(f"overlap-{comparison.id}", title, scores[0], least, comparison.id))
        parts.append(_lowest_combined(comparison, scores[0], least, name_of, image_of))
    parts += pruned_parts(comparison.id, scores[0].name, scores[0].values, pruned_fraction(logs), name_of, image_of)
    for number, (one, other) in enumerate(pairwise(scores)):
        title = f"What {one.name} and {other.name} would prune"
        parts.append(overlap_chart(f"overlap-scores-{number}-{comparison.id}", title, one, other, comparison.id))
    return parts


def _read_scores(logs: Mapping[str, Log], files: Sequence[Path], size: int) -> list[Ranking]:
    """Scores from the given files, then those of runs on a diet. Missing files and other data sets are left out."""
    options = [log.run.config.get("options") or {} for log in logs.values()]
    named = [Path(str(option["scores"])) for option in options if "scores" in option]
    found = []
    for file in dict.fromkeys([*files, *(path for path in named if path.exists())]):
        values = sb.pruning.load_scores(file).double().numpy()
        if len(values) == size:
            found.append(Ranking(file.stem, values))
    return found


def overlap_chart(id: str, title: str, one: Ranking, other: Ranking, comparison: str = "") -> Figure:
    """Chart of how many of the lowest by one ranking are also lowest by the other. Chance is the diagonal."""
    rows = [
        {"fraction": fraction, "overlap": share, "chance": fraction}
        for fraction, share in ranking.overlaps(one.values, other.values)
    ]
    x = axis("fraction", "share of the data that is left out", format=".0%", domain=[0, 1])
    y = axis("overlap", "overlap", format=".0%", domain=[0, 1])
    chance = [{"fraction": at, "overlap": at, "text": "by chance" if at == 0.5 else ""} for at in (0, 0.5, 1)]
    diagonal: Spec = {"data": {"values": chance}, "encoding": {"x": x, "y": y}}
    text = {"type": "text", "align": "left", "dx": 6, "dy": 10}
    spec: Spec = {
        "layer": [
            diagonal | {"mark": {"type": "line", "strokeWidth": 1, "strokeDash": [3, 3], "color": PHASES[1]}},
            diagonal | {"mark": text, "encoding": {"x": x, "y": y, "text": {"field": "text"}}},
            {"mark": {"type": "line", "color": PHASES[0]}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "point", "color": PHASES[0]},
                "encoding": {"x": x, "y": y, "tooltip": tooltip(left_out="fraction|.0%", overlap="overlap|.1%")},
            },
        ]
    }
    alt = "; ".join(
        f"at {r['fraction']:.0%} {r['overlap']:.0%}" for r in rows if r["fraction"] in (0.1, 0.25, 0.5, 0.75)
    )
    note = "Above the diagonal, both would leave out the same examples more often than by chance."
    return Figure(id, title, f"Overlap {alt}.", spec, rows, comparison, note=note)


def _lowest_combined(
    comparison: Comparison,
    one: Ranking,
    other: Ranking,
    name_of: Callable[[int], str],
    image_of: Callable[[int], str],
) -> Table:
    values = ranking.combined_rank(one.values, other.values)
    ids = ranking.lowest(values, _LISTED)
    with_image, with_name = bool(ids and image_of(ids[0])), bool(ids and name_of(ids[0]))
    heading = ["id", *(["image"] if with_image else []), *(["label"] if with_name else [])]
    cells = [
        [
            str(id),
            *([image_of(id)] if with_image else []),
            *([name_of(id)] if with_name else []),
            f"{one.values[id]:.3f}",
            f"{int(np.floor(other.values[id]))}",
        ]
        for id in ids
    ]
    title = "Lowest combined rank: what both would leave out first"
    heading += [f"score ({one.name})", "times trained on"]
    every = [
        [id, name_of(id), rounded(float(one.values[id])), int(other.values[id]), rounded(float(values[id]))]
        for id in ranking.lowest(values, len(values))
    ]
    exported = ["id", "label", f"score ({one.name})", "times trained on", "combined rank"], every
    note = "All examples, in this order, are in the CSV file of --export."
    return Table(f"combined-{comparison.id}", title, heading, cells, comparison.id, note, exported)
