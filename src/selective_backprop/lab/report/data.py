"""Section 8: what the ledgers say about the data.

# M = examples
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selective_backprop.lab.data.datasets import ImageSet
from selective_backprop.lab.report import ranking
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Gallery, Part, Picture, Section, Table, Text, rounded
from selective_backprop.lab.report.images import LoadData, labels_of, may_show, quoted_text, thumbnail
from selective_backprop.lab.report.logs import Log
from selective_backprop.lab.report.overlap import Ranking, overlap_chart, overlap_parts
from selective_backprop.lab.report.predictions import predictions

READING = (
    "Easy examples are learned early, hard ones keep a high loss (small curves are losses by epoch), and among the "
    "hardest are those whose label is wrong."
)
_PER_CLASS, _MOST_CLASSES, _LISTED = 8, 10, 24


@dataclass(frozen=True, eq=False)
class Examples:
    """What is known about the training examples of a run."""

    log: Log
    data: ImageSet | None
    labels: NDArray[np.int64] | None
    flipped: NDArray[np.bool_] | None
    show_images: bool

    def name(self, id: int) -> str:
        """Name of the label that the example was trained with."""
        return "" if self.data is None or self.labels is None else self.data.classes[self.labels[id]]

    def picture(self, id: int) -> Picture:
        words = f"example {id}, labelled {self.name(id)}" if self.labels is not None else f"example {id}"
        losses = [float(loss) for loss in self.log.history.loss[:, id]]
        return Picture(id, words, losses, self.image(id))

    def image(self, id: int) -> str:
        if not self.show_images or self.data is None or self.data.is_text:
            return ""
        return thumbnail(self.data.train_images[id])


def about_data(
    comparisons: Sequence[Comparison],
    logs: Mapping[str, Mapping[str, Log]],
    *,
    load: LoadData | None = None,
    images: bool | None = None,
    scores: Sequence[Path] = (),
) -> Section:
    """Section with galleries, likely wrong labels, and how well rankings agree.

    Args:
        logs: by comparison and label.
        load: gives the data of a run; None, or an error of its own: labels and images are left out.
        images: whether to show any; None: of digits alone, which anybody may pass on.
        scores: files of scores to compare with what selection used, beside those that runs used themselves.
    """
    parts: list[Part] = []
    shown: set[str] = set()  # a sweep has many comparisons with nearly the same galleries
    for comparison in comparisons:
        if not (mine := logs[comparison.id]):
            continue
        dataset = str(comparison.runs[0].recipe["dataset"])
        # Traditional has losses from every epoch, and no selection has biased them.
        examples = _examples(mine.get(comparison.reference or "") or next(iter(mine.values())), load, images)
        if dataset not in shown:
            parts += _galleries(comparison, examples)
        parts += _suspects(comparison, examples)
        if dataset not in shown:
            parts += overlap_parts(comparison, mine, scores, examples.name, examples.image)
        shown.add(dataset)
    parts += _between_architectures(comparisons, logs)
    return Section("data", "The data", READING, parts)


def _examples(log: Log, load: LoadData | None, images: bool | None) -> Examples:
    try:
        data = load(log.run) if load is not None else None
    except (ValueError, OSError, ImportError):
        data = None  # the runs were made on another machine
    if data is None or len(data.train_labels) != log.num_examples:
        return Examples(log, None, None, None, False)
    labels, flipped = labels_of(log.run, data)
    return Examples(log, data, labels, flipped, may_show(data, images))


def _galleries(comparison: Comparison, examples: Examples) -> list[Part]:
    if examples.labels is None or examples.data is None:
        return []
    losses = ranking.mean_loss(examples.log)
    parts: list[Part] = []
    for title, rank in (("Easiest", ranking.lowest), ("Hardest", ranking.highest)):
        rows: dict[str, list[Picture]] = {}
        for label, name in list(enumerate(examples.data.classes))[:_MOST_CLASSES]:
            mine = np.where(examples.labels == label, losses, np.nan)
            rows[f"{label}: {name}" if name != str(label) else name] = [
                examples.picture(id) for id in rank(mine, _PER_CLASS)
            ]
        words = f"{title} examples of each class, by mean loss ({examples.log.run.label}, seed {examples.log.run.seed})"
        parts.append(Gallery(f"{title.lower()}-{comparison.id}", words, rows, comparison.id))
    return parts


def _suspects(comparison: Comparison, examples: Examples) -> list[Part]:
    """Likely wrong labels, or else the hardest examples; and how many labels are wrong where that is known."""
    values = ranking.suspicion(examples.log, examples.labels)
    flipped = examples.flipped if examples.flipped is not None and examples.flipped.any() else None
    parts: list[Part] = []
    if flipped is not None:
        total = int(flipped.sum())
        found = int(flipped[ranking.highest(values, total)].sum())
        words = (
            f"{total:,} labels were made wrong on purpose. Of the {total:,} ranked highest, **{found / total:.0%}** "
            f"are among them; by chance it would be {total / len(flipped):.0%}."
        )
        parts.append(Text(words, comparison.id))
    likely = _likely_wrong(examples)
    ids = [id for id in ranking.highest(values, len(values)) if not likely or id in likely][:_LISTED]
    if not ids:
        return parts
    said = predictions(examples.log.run, examples.data, ids) if examples.data is not None else {}
    measure = "loss above its class" if examples.labels is not None else "loss"
    columns: dict[str, Callable[[int], str]] = {"id": str}
    if examples.show_images and examples.data is not None and examples.data.is_text:
        texts = examples.data.train_images
        columns["text"] = lambda id: quoted_text(texts[id])
    elif examples.show_images:
        columns["image"] = examples.image
    if examples.labels is not None:
        columns["label"] = examples.name
    if said:
        columns["prediction"] = said.__getitem__
    columns[measure] = lambda id: f"{values[id]:.2f}"
    if flipped is not None:
        columns["made wrong"] = lambda id: "yes" if flipped[id] else "no"
    cells = [[show(id) for show in columns.values()] for id in ids]
    title, note = _HARDEST
    if likely:
        title, note = f"{len(likely):,} labels that are likely wrong, the likeliest first", _LIKELY
    every = [[id, examples.name(id), rounded(float(values[id]))] for id in ranking.highest(values, len(values))]
    exported = ["id", "label", measure], every
    return [*parts, Table(f"suspects-{comparison.id}", title, list(columns), cells, comparison.id, note, exported)]


_HARDEST = (
    "Hardest examples; check labels",
    "By the mean loss in the second half of the run. None is so high that its label is likely wrong.",
)
_LIKELY = (
    "In the second half of the run, the network gave these labels less than half the chance that a blind guess would."
)


def _likely_wrong(examples: Examples) -> set[int]:
    """Ids of examples whose mean loss in the second half of the run is above log(2 x classes).

    On digits with 10% wrong labels, all those that it finds after 10 epochs are wrong; on clean digits it finds none.
    """
    if examples.data is None:
        return set()
    losses = ranking.mean_loss(examples.log, since=0.5)
    return {int(id) for id in np.flatnonzero(losses > np.log(2 * examples.data.num_classes))}


def _between_architectures(comparisons: Sequence[Comparison], logs: Mapping[str, Mapping[str, Log]]) -> list[Part]:
    """How well two networks agree on the least used examples, for the first method that ran with both."""
    first: dict[tuple[str, str, int], tuple[str, Log]] = {}
    for comparison in comparisons:
        for log in logs[comparison.id].values():
            if log.run.method == "traditional":
                continue
            key = str(log.run.recipe["dataset"]), log.run.method, log.num_examples
            model, other = str(log.run.recipe["model"]), first.get(key)
            if other is None:
                first[key] = model, log
            elif other[0] != model:
                one, two = (Ranking(name, ranking.times_used(its_log)) for name, its_log in (other, (model, log)))
                title = f"What {log.run.method} uses least, by {other[0]} and by {model}"
                return [overlap_chart("overlap-architectures", title, one, two)]
    return []
