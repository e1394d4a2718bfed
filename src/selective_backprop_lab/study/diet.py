"""Pruning before training in experiments: scores from briefly trained networks.

# M = training examples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop_lab.data.datasets import ImageDataset, ImageSet
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.training import Observer, Settings, Training, advance, start

_SCORING_BATCH = 500  # as fast as larger batches, with less memory


def score_by_network(
    settings: Settings,
    data: ImageSet,
    folder: Path,
    *,
    epochs: int,
    observers: Sequence[Observer] = (),
) -> Tensor:
    """Scores of all training examples by a network after the first `epochs` of a run; (M,).

    The run is cut off, not compressed: it follows the recipe's own schedule, which has hardly decayed so early. Paul,
    Ganguli and Dziugaite 2021 do the same: their scores come from the first epochs of ordinary runs. With a schedule
    compressed to these epochs, the network would fit many examples, and differences between those would be lost. Also,
    a run that was cut off can continue, to score later as well.

    Args:
        settings: settings of the run. Use the method "traditional", so that all examples are trained on equally often.
        folder: folder of the run. A stopped run continues there, and scores in it are not computed again.
        epochs: 0 scores the untrained network.
        observers: called after every epoch.
    """
    if not 0 <= epochs <= settings.epochs:
        raise ValueError(f"epochs must be from 0 to the recipe's {settings.epochs}, got {epochs}")
    with RunFolder(folder, settings.as_json(), data.fingerprint) as run:
        file = folder / f"el2n-{epochs}.pt"
        if file.exists():
            return sb.pruning.load_scores(file, len(data.train_labels))
        training = start(settings, data, run)
        if len(training.records) > epochs:
            raise ValueError(
                f"the network in {folder} has been trained for {len(training.records)} epochs already, scores after "
                f"{epochs} cannot be had from it: choose another folder"
            )
        while len(training.records) < epochs:
            advance(training, run, observers)
        scores = _score(training, data.train_images, data.train_labels)
        sb.pruning.save_scores(scores, file)
    return scores


def _score(training: Training, images: Tensor, labels: Tensor) -> Tensor:
    """Score images as they are, without augmentation."""
    dataset = ImageDataset(images, labels)
    loader: DataLoader[Any] = DataLoader(dataset, _SCORING_BATCH, collate_fn=dataset.collate)

    def forward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return model(training.normalise(batch[0])), batch[1]

    return sb.pruning.score_examples(training.model, loader, forward=forward)


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, and how much of it a pruning leaves out."""

    name: str
    examples: int
    lowest: float
    median: float
    highest: float
    pruned: int


def summarise(scores: Tensor, keep: Tensor, labels: Tensor, classes: Sequence[str]) -> list[ClassScores]:
    """Summarise each class that has examples, lowest median first. Examples without a score (NaN) count too.

    >>> scores, labels = torch.tensor([0.1, 0.9, 0.5, 0.7]), torch.tensor([0, 1, 0, 1])
    >>> for row in summarise(scores, sb.pruning.keep_after_pruning(scores, 0.5), labels, ("cat", "dog")):
    ...     print(row.name, row.examples, row.median, row.pruned)
    cat 2 0.1... 2
    dog 2 0.69... 0
    """
    rows = []
    for label, name in enumerate(classes):
        mine = (labels == label).nonzero().flatten()
        found = scores[mine][~scores[mine].isnan()]
        spread = (found.min(), found.median(), found.max()) if len(found) else (torch.tensor(float("nan")),) * 3
        lowest, median, highest = (float(value) for value in spread)
        rows.append(ClassScores(name, len(mine), lowest, median, highest, int((~keep[mine]).sum())))
    return sorted((row for row in rows if row.examples), key=lambda row: row.median)


_FAR_MORE = 1.5
_BEYOND_CHANCE = 4  # standard errors


def warning_about(rows: Sequence[ClassScores], fraction: float) -> str:
    """Say which classes a pruning hits far harder than the others; "" if there are none.

    Those are classes that lose more than 1.5 times the whole data set's share, and more than chance explains.

    >>> rows = [ClassScores("cat", 100, 0.1, 0.2, 0.3, 60), ClassScores("dog", 300, 0.1, 0.5, 0.9, 40)]
    >>> warning_about(rows, 0.25)
    'Of all examples 25% are left out, but 60% of cat. Prune less, or each class by itself (...).'
    """
    hit = [
        row
        for row in sorted(rows, key=lambda row: -row.pruned / row.examples)
        if (share := row.pruned / row.examples) > _FAR_MORE * fraction
        and share - fraction > _BEYOND_CHANCE * (fraction * (1 - fraction) / row.examples) ** 0.5
    ]
    if not hit:
        return ""
    named = ", ".join(f"{row.pruned / row.examples:.0%} of {row.name}" for row in hit[:5])
    more = f" and more than {_FAR_MORE}x as much of {len(hit) - 5} other classes" if len(hit) > 5 else ""
    return (
        f"Of all examples {fraction:.0%} are left out, but {named}{more}. Prune less, or each class by itself "
        "(classes= of keep_after_pruning)."
    )
