"""The audit: what a run learned about each of its examples.

# E = epochs, M = examples
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selective_backprop.dynamics import statistics
from selective_backprop.dynamics.log import FILE, Dynamics
from selective_backprop.dynamics.neighbours import label_votes, nearest_neighbours
from selective_backprop.saved import write_table

Array = NDArray[Any]
_EASY, _AMBIGUOUS, _HARD, _UNKNOWN = "easy", "ambiguous", "hard", "unknown"
KINDS = (_EASY, _AMBIGUOUS, _HARD, _UNKNOWN)
"""Kinds of examples in the map of Swayamdipta et al. 2020."""
FEWEST_EPOCHS = 2
"""Epochs that are needed to say anything about labels."""


@dataclass(frozen=True, eq=False)
class Audit:
    """One value per example in each column, in the order of ids. NaN, or -1 in columns of whole numbers: not known."""

    id: Array
    label: Array
    """The class with which the example was trained."""
    wrong: Array
    """Probability that the label is wrong; see `statistics.wrong_probability`."""
    suggested: Array
    """The class that the label should probably be if it is wrong."""
    label_score: Array
    """How well the label fits. It is the AUM with epochs weighted by what the network knew in them."""
    aum: Array
    """Area under the margin: mean over epochs of the label's logit minus the highest other logit."""
    confidence: Array
    """Mean over epochs of the probability of the label."""
    variability: Array
    """Standard deviation of the probability of the label, over the epochs in which the example was seen."""
    kind: Array
    """easy, ambiguous (in the third with the highest variability), or hard (confidence below 1/2); unknown."""
    forgotten: Array
    """How often the prediction went from right to wrong, at least."""
    learned: Array
    """The epoch in which the prediction was first right, at the latest."""
    mean_loss: Array
    """Mean loss over epochs."""
    last_loss: Array
    """The last loss."""
    age: Array
    """Epochs between the last loss and the end of the run: 0 if it is from the last epoch."""
    times_trained: Array
    """How often the example was trained on."""
    noise_rate: float = field(metadata={"column": False})
    """The estimated share of wrong labels, from the examples on which the network is surest; NaN if it is not known."""
    num_epochs: int = field(metadata={"column": False})
    """Epochs that the run recorded."""
    num_classes: int = field(metadata={"column": False})
    """Number of classes; 0 if it is not known."""
    notes: tuple[str, ...] = field(default=(), metadata={"column": False})
    """What could not be computed, and why."""

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        wrong = f", {len(self.suspects())} labels probably wrong" if self.num_classes else ""
        return f"Audit({len(self):,} examples, {self.num_epochs} epochs{wrong})"

    def columns(self) -> dict[str, Array]:
        """Return all columns by name."""
        names = [item.name for item in dataclasses.fields(self) if item.metadata.get("column", True)]
        return {name: getattr(self, name) for name in names}

    def ranked(self) -> Array:
        """Return all ids, those whose label is most probably wrong first; without labels, the highest loss first.

        Examples that were never seen come last.
        """
        return np.argsort(self.label_score if self.num_classes else -self.mean_loss, kind="stable")

    def suspects(self, above: float = 0.5) -> Array:
        """Return the ids whose label is wrong with a probability above this, the worst first."""
        order = self.ranked()
        return order[np.nan_to_num(self.wrong[order]) > above]

    def expected_wrong(self) -> float:
        """Estimate how many labels are wrong in total. NaN if nothing is known."""
        return float(np.nansum(self.wrong)) if not np.isnan(self.wrong).all() else float("nan")

    def by_class(self) -> list[dict[str, Any]]:
        """Summarise each class, by its label in training: one dict per class, in sorted order.

        Examples that were never trained on have no label, and do not count.
        """
        if not self.num_classes:
            raise ValueError(f"there are no classes in this audit: {' '.join(self.notes)}")
        rows = []
        for value in np.unique(self.label[self.label >= 0]):
            mine = self.label == value
            kinds = {kind: float((self.kind[mine] == kind).mean()) for kind in KINDS[:3]}
            names = ("wrong", "times_trained", "confidence", "variability", "mean_loss")
            means = {name: _mean(getattr(self, name)[mine]) for name in names}
            rows.append({"group": value.item(), "examples": int(mine.sum())} | means | kinds)
        return rows

    def diet_scores(self) -> Tensor:
        """Return scores for `sb.diet`, which leaves out the lowest: 1 - confidence, or the mean loss if there is none.

        Examples whose label is probably wrong have the highest scores, above 1; `highest=` of `diet` leaves them out
        too.
        """
        if not self.num_classes:
            return torch.from_numpy(self.mean_loss.copy()).float()
        scores = 1 - self.confidence
        suspects = self.suspects()
        scores[suspects] = 1 + np.nan_to_num(self.wrong[suspects])
        return torch.from_numpy(scores).float()

    def save(self, file: str | Path) -> None:
        """Write all columns to a file.csv, one row per example. What is not known (NaN) is an empty field."""
        if Path(file).suffix.lower() != ".csv":
            raise ValueError(f"save writes CSV, but got {str(file)!r}: name the file .csv, or write columns() yourself")
        write_table(file, {name: column.tolist() for name, column in self.columns().items()})


def audit(source: Any, *, features: Tensor | Array | None = None) -> Audit:
    """Say what a run learned about each example: its kind, and whether its label is probably wrong.

    Selection skips examples, and what is skipped has no fresh loss. AUM, confidence and mean loss count such an epoch
    with the last value before it. `forgotten` is a lower and `learned` an upper bound. `age` says how old the last loss
    is. `label_score` leaves such epochs out, and corrects the others for what selection did to the network; see
    `statistics.selection_shift`.

    Args:
        source: a `SelectiveLoader` with `audit=True`, its `dynamics`, the folder of a run or a file that
            `Dynamics.save` wrote.
        features: (M, D) features of the examples, such as `sb.pruning.last_features` finds with one forward pass. The
            labels of an example's nearest neighbours then help to judge its own.

    >>> dynamics = Dynamics(2)
    >>> values = torch.tensor([[2.0, 0.9, 1.0, 0.0], [-3.0, 0.1, 0.0, 1.0]])  # margin, confidence, other class, label
    >>> for epoch in range(2):
    ...     dynamics.record(torch.tensor([0, 1]), torch.tensor([0.1, 2.3]), epoch, values)
    >>> audit(dynamics).ranked().tolist()
    [1, 0]
    """
    if isinstance(source, (str, Path)):
        source = _from_path(Path(source))
    elif hasattr(type(source), "dynamics"):  # a loader
        source = source.dynamics
    if not isinstance(source, Dynamics):
        raise TypeError(
            "audit needs a SelectiveLoader with audit=True, its dynamics, or the folder of a run, got "
            f"{type(source).__name__}"
        )
    if not source.num_rows:
        raise ValueError("the run has recorded nothing yet: train for at least one epoch before the audit")
    if features is not None and len(features) != len(source):
        raise ValueError(
            f"features must have one row per example, but there are {len(features):,} rows for {len(source):,} "
            "examples: they are of other data"
        )
    return _audit(source, features)


def _audit(dynamics: Dynamics, features: Tensor | Array | None) -> Audit:
    labels = dynamics.labels.astype(np.int64)
    losses, margins = dynamics.matrix("loss"), dynamics.matrix("margin")
    confidences, others = dynamics.matrix("confidence"), dynamics.matrix("other")
    num_epochs, has_classes, notes = len(losses), not np.isnan(margins).all(), []
    num_classes = int(max(labels.max(), np.nanmax(others))) + 1 if has_classes else 0
    nothing, rate = np.full(len(dynamics), np.nan), float("nan")
    wrong, scores, kind = nothing, nothing, np.full(len(dynamics), _UNKNOWN)
    confidence, spread = statistics.time_mean(confidences), statistics.variability(confidences)
    if not has_classes:
        notes.append(
            "There are only statistics of losses. Margins, confidences and wrong labels need audit=True "
            "(on the command line --record dynamics), and outputs that are logits (N, C) with labels (N,), which "
            "regression and sequences do not have."
        )
    else:
        scores = statistics.label_scores(margins, others, labels, num_classes)
        if features is not None:
            scores = statistics.with_neighbours(scores, label_votes(*nearest_neighbours(features), labels))
        kind = _kinds(confidence, spread)
        if num_epochs >= FEWEST_EPOCHS:
            wrong = statistics.wrong_probability(margins, confidences, scores, num_classes)
            rate = statistics.noise_rate(margins, confidences)
        else:
            notes.append(
                f"No probabilities of wrong labels: they take at least {FEWEST_EPOCHS} epochs, and the run has "
                "recorded one. Train longer."
            )
    counts = dynamics.counts()
    if never := int((counts == 0).sum()):
        notes.append(f"{never:,} examples were never trained on, so nothing is known about them.")
    seen = statistics.last_seen(losses)
    ids = np.arange(len(dynamics))
    return Audit(
        id=ids,
        label=labels,
        wrong=wrong,
        suggested=statistics.suggested_labels(others, confidences),
        label_score=scores,
        aum=statistics.time_mean(margins),
        confidence=confidence,
        variability=spread,
        kind=kind,
        forgotten=statistics.forgetting_events(margins) if has_classes else np.full(len(ids), -1),
        learned=statistics.first_learned(margins),
        mean_loss=statistics.time_mean(losses),
        last_loss=np.where(seen >= 0, losses[seen, ids], np.nan).astype(np.float64),
        age=np.where(seen >= 0, num_epochs - 1 - seen, -1),
        times_trained=counts,
        noise_rate=rate,
        num_epochs=num_epochs,
        num_classes=num_classes,
        notes=tuple(notes),
    )


def _kinds(confidence: Array, spread: Array) -> Array:
    """Divide the map: the third with the highest variability is ambiguous, the rest easy or hard by confidence."""
    known = ~np.isnan(confidence)
    limit = np.quantile(spread[known], 2 / 3)
    kinds = np.where(confidence >= 0.5, _EASY, _HARD)
    kinds = np.where((spread > limit) & known, _AMBIGUOUS, kinds)
    return np.where(known, kinds, _UNKNOWN)


def _from_path(path: Path) -> Dynamics:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give the folder of a run, or a file that Dynamics.save wrote")
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ValueError(
            f"{path} has no {FILE}, so the run recorded no dynamics: train with audit=True "
            "(`selective-backprop train --record dynamics`)"
        )
    return Dynamics.load(file)


def _mean(values: Array) -> float:
    return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else float("nan")
