"""The workloads of the leaderboard: data, network, recipe, budgets and seeds, all fixed before the first run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selective_backprop_lab.data.datasets import ImageSet, load_images
from selective_backprop_lab.names import unknown
from selective_backprop_lab.runs.recipes import Decay, Recipe, find_recipe


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training problem of the leaderboard."""

    title: str
    recipe: Recipe
    task: str = ""
    """What it is, in people's words. Larger workloads have it, for the first table that is shown."""
    lengths: tuple[int, ...]
    """Epochs of plain training, rising. Every run has a fully decayed rate."""
    seeds: int = 5
    """Number of seeds planned: 0, 1, 2, ..."""
    train_size: int | None = None
    """Examples to train on: a random part of the training set, the same one in every run. None for all."""
    proxy: str = "strided_cnn_tiny"
    """Network that scores for the others."""
    arms: tuple[str, ...] | None = None
    """Arms that are tuned here; None for all."""
    at_equal_compute: bool = False
    """Train an arm longer if it costs less than plain training, so that its runs cost about as much. Otherwise every
    arm is trained at the same lengths, and at one more that costs as much as plain training's longest."""
    finalists: int | None = None
    """How many settings of a baseline get more than one seed to be chosen by; None for all of them."""
    baseline_seeds: int = 5
    """Seeds by which the baselines choose."""
    tune_rates_only: bool = False
    """Choose among three learning rates, by the error after the shortest length, with one seed: a sixth of the time."""
    label_noise: float = 0.0
    standardize: bool = False
    """Give all images the same brightness and contrast."""
    settled: Mapping[str, tuple[str, float]] | None = None
    """Settings that are not tuned but taken from the papers: the setting of each arm, and how many times longer than
    plain training it is trained, so that it costs about as much."""
    held_out: int = 10_000
    """Training examples that settings are chosen on. No trial trains on them."""

    @property
    def middle(self) -> int:
        """The middle length, at which settings are chosen unless only rates are."""
        return self.lengths[len(self.lengths) // 2]

    @property
    def trial_length(self) -> int:
        """Length of the trials that settings are chosen by."""
        return self.lengths[0] if self.tune_rates_only else self.middle

    def load(self, data_dir: Path | None, *, held_out: bool) -> ImageSet:
        """Load the training part, with the test set or, to choose settings, with held-out training examples."""
        name = self.recipe.dataset
        full = load_images(name, data_dir=data_dir, image_size=self.recipe.image_size)
        order = torch.randperm(len(full.train_labels), generator=torch.Generator().manual_seed(0))
        if len(order) < (self.train_size or 1) + self.held_out:
            raise ValueError(
                f"{name} has {len(order)} training examples, but {self.train_size or 1} to train on and "
                f"{self.held_out} to choose settings are needed"
            )
        rest, validation = order[: -self.held_out], order[-self.held_out :]
        train = (rest if held_out else order)[: self.train_size]
        part = dataclasses.replace(full, train_images=full.train_images[train], train_labels=full.train_labels[train])
        if held_out:
            images, labels = full.train_images[validation], full.train_labels[validation]
            part = dataclasses.replace(part, test_images=images, test_labels=labels)
        return part.standardized() if self.standardize else part


def _images(dataset: str, **more: object) -> Recipe:
    recipe = Recipe(
        dataset=dataset,
        model="strided_cnn",
        epochs=6,
        source="made for the leaderboard: many runs on one core",
        decay=Decay(kind="linear"),
        image_size=14,
        batch_size=128,
        lr=0.1,
        padding=1,
        flip=False,
    )
    return recipe.with_(**more)


_LENGTHS = (1, 2, 3, 4, 6)

SMALL: dict[str, Workload] = {
    "mnist": Workload(
        title="MNIST, 14x14, 20,000 examples, strided CNN",
        recipe=_images("mnist", lr=0.3),
        train_size=20_000,
        lengths=_LENGTHS,
        seeds=16,
    ),
    "fashion": Workload(
        title="Fashion-MNIST, 14x14, 20,000 examples, strided CNN",
        recipe=_images("fashion_mnist", flip=True, lr=0.2),
        train_size=20_000,
        lengths=_LENGTHS,
    ),
    "svhn": Workload(
        title="SVHN (re-cropped), 16x16, 20,000 examples, strided CNN",
        recipe=_images("svhn", image_size=16, padding=2, lr=0.2),
        train_size=20_000,
        lengths=(2, 3, 4, 6, 8),
    ),
    "mnist-noisy": Workload(
        title="MNIST with 10% wrong labels, 14x14, 20,000 examples, strided CNN",
        recipe=_images("mnist", lr=0.3),
        train_size=20_000,
        lengths=_LENGTHS,
        label_noise=0.1,
    ),
    "cifar10": Workload(
        title="CIFAR-10, 32x32, 2,000 examples, augmented, wide strided CNN",
        recipe=_images("cifar10", image_size=32, padding=2, flip=True, model="strided_cnn_wide").with_(
            lr=0.05, batch_size=32, weight_decay=1e-4
        ),
        train_size=2_000,
        lengths=(6, 9, 12, 18, 30),
    ),
    "text": Workload(
        title="WordNet's definitions by topic, 64 bytes, 4,000 examples, byte transformer",
        recipe=_images("wordnet", image_size=None, model="byte_transformer", padding=0).with_(
            optimizer="adamw", lr=0.006, weight_decay=0.05, batch_size=64
        ),
        train_size=4_000,
        lengths=_LENGTHS,
        proxy="byte_transformer_tiny",
    ),
    "resnet": Workload(
        title="SVHN (re-cropped), 16x16, standardized, 4,000 examples, ResNet-20 of half width",
        recipe=_images("svhn", image_size=16, padding=2, model="resnet20_narrow").with_(
            batch_size=64, lr=0.1, decay=Decay(kind="triangle")
        ),
        train_size=4_000,
        lengths=(3, 4, 5, 6, 8),
        standardize=True,  # without it, some runs learn nothing for several epochs
    ),
}


_OTHERS = ("InfoBatch", "SB", "Stale-SB")
_BASELINES = ("plain", "repeated random")


def _larger(task: str, title: str, recipe: Recipe, *others: str, **more: Any) -> Workload:
    """A workload with all training examples and a larger network, for the baselines, the ledger and a few others."""
    options: dict[str, Any] = {"lengths": (2, 3, 4, 6, 8), "baseline_seeds": 2, "finalists": 2} | more
    arms = _BASELINES + others
    return Workload(task=task, title=title, recipe=recipe, arms=arms, at_equal_compute=True, **options)


_deeper = {"model": "resnet20", "decay": Decay(kind="triangle")}
_RATES_ONLY = {"tune_rates_only": True, "baseline_seeds": 1}

LARGER: dict[str, Workload] = {
    "mnist-resnet8": _larger(
        "digits (MNIST), ResNet-8", "MNIST, 14x14, 60,000 examples, ResNet-8", find_recipe("mnist_small"), *_OTHERS
    ),
    "fashion-resnet8": _larger(
        "clothes (Fashion-MNIST), ResNet-8",
        "Fashion-MNIST, 14x14, 60,000 examples, ResNet-8",
        find_recipe("fashion_mnist_small"),
    ),
    "svhn-resnet8": _larger(
        "house numbers (SVHN), ResNet-8",
        "SVHN (re-cropped), 16x16, 73,257 examples, ResNet-8",
        find_recipe("svhn_small"),
        *_OTHERS,
    ),
    "mnist-resnet8-noisy": _larger(
        "digits with 10% wrong labels, ResNet-8",
        "MNIST with 10% wrong labels, 14x14, 60,000 examples, ResNet-8",
        find_recipe("mnist_small"),
        label_noise=0.1,
        **_RATES_ONLY,
    ),
    "svhn-resnet8-noisy": _larger(
        "house numbers with 10% wrong labels, ResNet-8",
        "SVHN (re-cropped) with 10% wrong labels, 16x16, 73,257 examples, ResNet-8",
        find_recipe("svhn_small"),
        label_noise=0.1,
        **_RATES_ONLY,
    ),
    "svhn-resnet20": _larger(
        "house numbers (SVHN), ResNet-20",
        "SVHN (re-cropped), 16x16, standardized, 73,257 examples, ResNet-20",
        find_recipe("svhn_small").with_(**_deeper),
        standardize=True,
        **_RATES_ONLY,
    ),
    "cifar10-resnet20": _larger(
        "things and animals (CIFAR-10), ResNet-20",
        "CIFAR-10, 16x16, augmented, 50,000 examples, ResNet-20",
        find_recipe("cifar10_small").with_(**_deeper),
        lengths=(2, 4, 6, 8, 12),
        **_RATES_ONLY,
    ),
    "cifar10-fast": _larger(
        "things and animals (CIFAR-10), small CNN",
        "CIFAR-10, 32x32, augmented, 50,000 examples, strided CNN of 95,000 parameters",
        _images("cifar10", image_size=None, padding=4, flip=True, model="strided_cnn_dense"),
        lengths=(5, 8, 12, 20, 30),
        **_RATES_ONLY,
    ),
    "text-transformer": _larger(
        "definitions by topic (WordNet), transformer",
        "WordNet's definitions by topic, 64 bytes, 40,000 examples, byte transformer of 1.1 million parameters",
        _images("wordnet", image_size=None, model="byte_transformer_large", padding=0).with_(
            optimizer="adamw", lr=0.002, weight_decay=0.05, batch_size=64, decay=Decay(kind="triangle")
        ),
        train_size=40_000,
        lengths=(1, 2, 3, 4, 6),
        **_RATES_ONLY,
    ),
}
"""What is shown first: whole data sets and larger networks, with few arms."""

_SETTLED = {
    "plain": ("traditional:rate=1", 1.0),
    "repeated random": ("repeated_random@0.333:rate=1", 3.0),
    "InfoBatch": ("infobatch:prune=0.5,rate=1", 1.4),
    "SB": ("sb@0.333:rate=1", 1.5),
    "Stale-SB": ("stale@0.333:every=3,rate=1", 2.25),
    "ledger, default": ("ledger:rate=1", 1.5),
}


def _paper(title: str, recipe: str, model: str, lengths: tuple[int, ...], **more: Any) -> Workload:
    changed = find_recipe(recipe).with_(model=model, bf16=True, **more)
    return Workload(title=title, recipe=changed, lengths=lengths, seeds=3, settled=_SETTLED)


PAPER: dict[str, Workload] = {
    "cifar10-resnet18": _paper("CIFAR-10, 50,000 examples, ResNet-18", "cifar10", "resnet18", (50, 100, 200)),
    "cifar100-resnet18": _paper("CIFAR-100, 50,000 examples, ResNet-18", "cifar100", "resnet18", (50, 100, 200)),
    "svhn-wrn": _paper(
        "SVHN with its extra images, 604,388 examples, WRN-16-8",
        "svhn",
        "wrn_16_8",
        (40, 80, 160),
        dataset="svhn_extra",
    ),
}
"""The papers' recipes, for a GPU: rates, decay and augmentation of Jiang et al., in bfloat16."""

WORKLOADS: dict[str, Workload] = LARGER | SMALL | PAPER
"""All workloads by name. The small ones have all arms."""

DIGITS = Workload(
    title="scikit-learn's digits, 8x8, 992 examples, strided CNN: to try the leaderboard out in a minute",
    recipe=_images("digits", image_size=None, padding=0, batch_size=32),
    train_size=992,
    lengths=(1, 2, 3),
    seeds=2,
    held_out=400,
)


def find_workload(name: str) -> Workload:
    """Find a workload by name.

    >>> find_workload("mnist").middle
    3
    """
    known = WORKLOADS | {"digits": DIGITS}
    if name not in known:
        raise unknown("workload", name, known)
    return known[name]
