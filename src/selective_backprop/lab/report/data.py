"""What the ledgers say about the data: the easiest and hardest examples, and what scores would prune.

# M = examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selective_backprop.lab.data.datasets import flip_labels
from selective_backprop.lab.report.comparisons import Comparison
from selective_backprop.lab.report.figures import Gallery, Part, Picture, Section
from selective_backprop.lab.report.images import LoadData, Shown
from selective_backprop.lab.report.left_out import LeftOut
from selective_backprop.lab.report.logs import Log, highest, lowest, mean_loss
from selective_backprop.lab.report.pruning import pruning_parts

READING = (
    "Easy examples are learned early, and hard ones keep a high loss; among the hardest are those whose label is wrong."
)
_PER_CLASS, _MOST_CLASSES = 8, 10


@dataclass(frozen=True, eq=False)
class Examples:
    """What is known about the training examples of a run."""

    log: Log
    shown: Shown
    labels: NDArray[np.int64] | None
    """(M,) labels that were trained on, where the data are on this machine."""

    @classmethod
    def of(cls, log: Log, load: LoadData | None, images: bool | None) -> Examples:
        shown = Shown.of(log.run, log.num_examples, load, images)
        if shown.data is None:
            return cls(log, shown, None)
        noise, labels = float(log.run.config.get("label_noise", 0)), shown.data.train_labels
        if noise:
            labels, _ = flip_labels(labels, noise, shown.data.num_classes, seed=log.run.seed)
        return cls(log, shown, labels.numpy())

    def name(self, id: int) -> str:
        """Name of the label that the example was trained with."""
        return "" if self.labels is None else self.shown.class_name(int(self.labels[id]))

    def picture(self, id: int) -> Picture:
        return Picture(id, f"example {id}, labelled {self.name(id)}", self.shown.image(id))


def about_data(
    comparisons: Sequence[Comparison],
    logs: Mapping[str, Mapping[str, Log]],
    left_out: LeftOut,
    *,
    load: LoadData | None = None,
    images: bool | None = None,
    scores: Sequence[Path] = (),
) -> Section:
    """Section with galleries, and what scores would prune. A data set is shown once.

    Args:
        logs: by comparison and label.
        left_out: takes note of files that cannot be read.
        load: gives the data of a run; None, or an error of its own: labels and images are left out.
        images: whether to show any; None: of digits alone, which anybody may pass on.
        scores: files of scores to compare with what selection used, beside those that runs used themselves.
    """
    parts: list[Part] = []
    shown: set[str] = set()  # a sweep has many comparisons with nearly the same galleries
    for comparison in comparisons:
        mine, dataset = logs[comparison.id], str(comparison.runs[0].recipe["dataset"])
        if not mine or dataset in shown:
            continue
        shown.add(dataset)
        # Traditional has losses from every epoch, and no selection has biased them.
        examples = Examples.of(mine.get(comparison.reference or "") or next(iter(mine.values())), load, images)
        parts += _galleries(comparison.id, examples)
        parts += pruning_parts(comparison.id, mine, scores, examples.name, examples.shown.image, left_out)
    return Section("data", "The data", READING, parts)


def _galleries(comparison: str, examples: Examples) -> list[Part]:
    data, run = examples.shown.data, examples.log.run
    if data is None or examples.labels is None:
        return []
    losses = mean_loss(examples.log)
    parts: list[Part] = []
    for title, rank in (("Easiest", lowest), ("Hardest", highest)):
        rows: dict[str, list[Picture]] = {}
        for label, name in list(enumerate(data.classes))[:_MOST_CLASSES]:
            mine = np.where(examples.labels == label, losses, np.nan)
            heading = f"{label}: {name}" if name != str(label) else name
            rows[heading] = [examples.picture(id) for id in rank(mine, _PER_CLASS)]
        words = f"{title} examples of each class, by mean loss ({run.label}, seed {run.seed})"
        parts.append(Gallery(f"{title.lower()}-{comparison}", words, rows, comparison))
    return parts
