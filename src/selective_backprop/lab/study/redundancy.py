"""How much of the data a run could have done without: measured by training again on parts of it.

# M = training examples, H = held-out examples, S = seeds
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selective_backprop.files.reading import read_json
from selective_backprop.files.writing import make_subfolder, write_whole
from selective_backprop.lab.data.datasets import ImageSet, flip_labels
from selective_backprop.lab.runs.records import RunFolder
from selective_backprop.lab.runs.settings import Settings
from selective_backprop.lab.runs.training import Observer, Training, advance, start
from selective_backprop.pruning import keep_after_pruning

FILE = "redundancy.json"
"""Name of the file in the folder of a run that holds the measured curve."""
FOLDER = "redundancy.networks"
"""Folder for the networks. Its ending keeps them out of reports."""
AUDIT, RANDOM = "audit", "random"


@dataclass(frozen=True)
class Estimate:
    """A value with its 90% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class PartOfData:
    """Training on a part of the data.

    Args:
        ranking: what decided which examples stay: the audit, or chance.
        share: the share of the examples that stays.
        examples: how many these are.
        error: held-out error.
        difference: held-out error minus that of training on everything, paired by seed and held-out example.
    """

    ranking: str
    share: float
    examples: int
    error: Estimate
    difference: Estimate


@dataclass(frozen=True, eq=False)
class Redundancy:
    """The measured curve: share kept against held-out error, by the audit's ranking and by chance."""

    points: list[PartOfData]
    seeds: int
    held_out: int
    """Number of held-out examples."""
    split: str
    """Where they come from: "test set" or "validation split"."""
    model: str
    epochs: float
    """Epochs of training on everything. Runs on a part take as many steps."""
    highest: float
    """Share of examples with probably wrong labels, which the audit's ranking leaves out at every share below 1."""
    tolerance: float

    def of(self, ranking: str) -> list[PartOfData]:
        """Return the points of a ranking, the smallest share first. Training on everything belongs to both."""
        mine = [point for point in self.points if point.ranking == ranking or point.share == 1]
        return sorted(mine, key=lambda point: point.share)

    def smallest(self, ranking: str) -> PartOfData | None:
        """Return the smallest share below 1 that is certainly no worse than everything by more than the tolerance.

        Certainly: the upper end of the interval of the difference is at most the tolerance.
        """
        found = (p for p in self.of(ranking) if p.share < 1 and p.difference.high <= self.tolerance)
        return next(found, None)

    def verdict(self) -> str:
        """Say in words what can be left out."""
        audit, random = self.smallest(AUDIT), self.smallest(RANDOM)
        bound = f"{100 * self.tolerance:g} percentage points"
        if audit is None and random is None:
            return (
                f"At no share that was tried is the error certainly within {bound} of training on everything: keep all "
                f"examples, or measure with more than {self.seeds} seeds."
            )
        best = min((p for p in (audit, random) if p is not None), key=lambda p: (p.share, p.ranking != RANDOM))
        how = "those that the audit ranks highest" if best.ranking == AUDIT else "chosen at random"
        words = (
            f"{best.share:.0%} of the examples, {how}, are enough: the error changes by {best.difference.value:+.1%} "
            f"({best.difference.low:+.1%} to {best.difference.high:+.1%}), so it is certainly at most {bound} worse."
        )
        if random is not None and best.ranking == RANDOM:
            words += " The audit's ranking is not needed for that."
        return words

    def as_json(self) -> dict[str, Any]:
        """Return the curve as plain data."""
        return dataclasses.asdict(self)

    def save(self, run: Path) -> None:
        """Write the curve into the folder of its run."""
        write_whole({run / FILE: (json.dumps(self.as_json(), indent=1) + "\n").encode()})

    @classmethod
    def load(cls, run: Path) -> Redundancy:
        """Read the curve in the folder of a run. Raises ValueError if the file is damaged."""
        file = run / FILE
        try:
            content = read_json(file)
            kinds = {"seeds": int, "held_out": int, "split": str, "model": str}
            kinds |= dict.fromkeys(("epochs", "highest", "tolerance"), float)
            rest: dict[str, Any] = {name: kind(content[name]) for name, kind in kinds.items()}
            return cls([_part_of(point) for point in content["points"]], **rest)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}): measure the curve again") from None


def _part_of(content: Any) -> PartOfData:
    error, difference = (
        Estimate(*(float(content[name][end]) for end in ("value", "low", "high"))) for name in ("error", "difference")
    )
    return PartOfData(str(content["ranking"]), float(content["share"]), int(content["examples"]), error, difference)


def labels_of_run(settings: Settings, data: ImageSet) -> Tensor:
    """Return the training labels as the run saw them, with those that it made wrong."""
    if not settings.label_noise:
        return data.train_labels
    return flip_labels(data.train_labels, settings.label_noise, data.num_classes, seed=settings.seed)[0]


def keep_by_audit(scores: Tensor, share: float, highest: float) -> Tensor:
    """Decide which examples stay: (M,) bool. `highest` is left out first, then the lowest scores."""
    return keep_after_pruning(scores, max(0.0, 1 - share - highest), highest=min(highest, 1 - share))


def keep_at_random(num_examples: int, share: float, seed: int) -> Tensor:
    """Draw the examples that stay: (M,) bool. A smaller share of the same seed is a part of a larger one."""
    order = torch.randperm(num_examples, generator=torch.Generator().manual_seed(seed))
    keep = torch.zeros(num_examples, dtype=torch.bool)
    keep[order[: round(share * num_examples)]] = True
    return keep


def measure_redundancy(
    settings: Settings,
    data: ImageSet,
    scores: Tensor,
    folder: Path,
    *,
    shares: Sequence[float],
    highest: float = 0.0,
    seeds: int = 3,
    tolerance: float = 0.01,
    observers: Callable[[str, int], Sequence[Observer]] = lambda name, seed: (),
) -> Redundancy:
    """Train on everything and on parts of the data, plainly, and measure held-out errors.

    Each run takes as many training steps as one on everything, so that a higher error is due to the missing data and
    not to less training. It saves no compute, therefore; training on a part for as many epochs does.

    Args:
        settings: settings of the run whose data it is about. Its method plays no role.
        data: its data. Errors are those on its test images.
        scores: (M,) which examples to leave out first, the lowest ones; see `Audit.diet_scores`.
        folder: for the networks. After a stop, what is finished there is not trained again.
        shares: the shares to keep, each in (0, 1).
        highest: share of the highest scores to leave out as well.
        seeds: runs of every kind, at least 2: the spread between seeds is part of the interval.
        tolerance: how much higher the error may be, for `Redundancy.smallest`.
        observers: makes the observers of a run from its name and seed.
    """
    if seeds < 2:
        raise ValueError(f"a curve with its uncertainty needs at least 2 seeds, got {seeds}")
    if not shares or not all(0 < share < 1 for share in shares):
        raise ValueError(
            f"shares of the data to keep must be between 0 and 1, such as 0.25,0.5,0.75, got {list(shares)}"
        )
    smallest = min(round(share * len(scores)) for share in shares)
    if smallest < settings.recipe.batch_size:
        raise ValueError(
            f"{min(shares):.1%} of {len(scores):,} examples are {smallest}, fewer than a batch of "
            f"{settings.recipe.batch_size}: choose larger shares"
        )
    labels, epochs = labels_of_run(settings, data), settings.length or settings.epochs
    wrong: dict[tuple[str, float, int], list[NDArray[np.bool_]]] = {}
    kinds = [(AUDIT, 1.0), *((ranking, share) for share in sorted(set(shares)) for ranking in (AUDIT, RANDOM))]
    for seed in range(seeds):
        plain = dataclasses.replace(
            settings,
            method="traditional",
            selectivity=1.0,
            options={},
            seed=seed,
            label_noise=0.0,
            record=None,
            ranks=1,
        )
        for ranking, share in kinds:
            if share == 1:
                keep, name = torch.ones(len(labels), dtype=torch.bool), "everything"
            elif ranking == AUDIT:
                keep, name = keep_by_audit(scores, share, highest), f"{AUDIT}-{share:g}"
            else:
                keep, name = keep_at_random(len(labels), share, seed), f"{RANDOM}-{share:g}"
            part = dataclasses.replace(data, train_images=data.train_images[keep], train_labels=labels[keep])
            length = epochs * len(labels) / len(part.train_labels)
            mine = dataclasses.replace(plain, length=None if share == 1 and settings.length is None else length)
            place = make_subfolder(folder, f"{name}/seed-{seed}")
            found = _wrong_after(mine, part, place, observers(name, seed))
            wrong.setdefault((ranking, share, int(keep.sum())), []).append(found)
    everything = np.stack(wrong[AUDIT, 1.0, len(labels)])
    points = [
        PartOfData(*kind, interval(np.stack(found).astype(float)), interval(np.stack(found).astype(float) - everything))
        for kind, found in wrong.items()
    ]
    split = "validation split" if settings.validation else "test set"
    recipe, held_out = settings.recipe, len(data.test_labels)
    return Redundancy(points, seeds, held_out, split, recipe.model, float(epochs), highest, tolerance)


def _wrong_after(settings: Settings, data: ImageSet, place: Path, observers: Sequence[Observer]) -> NDArray[np.bool_]:
    """Train, and return which held-out examples the network gets wrong: (H,)."""
    file = place / "held-out.json"
    with RunFolder(place, settings.as_json(), data.fingerprint) as run:
        if not file.exists():
            training = start(settings, data, run)
            while len(training.records) < settings.epochs:
                advance(training, run, observers)
            write_whole({file: json.dumps({"wrong": _wrong_ids(training, data)}).encode()})
    result = np.zeros(len(data.test_labels), dtype=bool)
    result[read_json(file)["wrong"]] = True
    return result


@torch.no_grad()
def _wrong_ids(training: Training, data: ImageSet) -> list[int]:
    training.model.eval()
    found = []
    for part in torch.split(data.test_images, 1000):
        found.append(training.model(training.normalise(part.to(training.device))).argmax(1).cpu())
    return [int(id) for id in (torch.cat(found) != data.test_labels).nonzero().flatten()]


def interval(values: NDArray[np.float64]) -> Estimate:
    """Return the mean of (S, H) values, with a 90% interval for other seeds and other held-out examples.

    The half-width is the root of the sum of two squares: Student's t times the standard error over seeds, and 1.645
    times the standard error over held-out examples.

    >>> found = interval(np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]))
    >>> found.value, round(found.high - found.value, 3)
    (0.5, 0.475)
    """
    from scipy import stats  # here, because it takes half a second

    seeds, examples = values.shape
    by_seed, by_example = values.mean(1), values.mean(0)
    over_seeds = float(stats.t.ppf(0.95, seeds - 1) * by_seed.std(ddof=1)) / math.sqrt(seeds)
    over_examples = float(stats.norm.ppf(0.95) * by_example.std(ddof=1)) / math.sqrt(examples) if examples > 1 else 0.0
    width, mean = math.hypot(over_seeds, over_examples), fmean(by_seed.tolist())
    return Estimate(mean, mean - width, mean + width)
