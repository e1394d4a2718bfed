"""Published training setups, at their own length or stretched to any other."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from selective_backprop.options import require_numbers
from selective_backprop_lab.names import unknown


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Factor on the learning rate as a function of progress, which goes from 0 to 1.

    >>> Decay(kind="step", milestones=(0.3, 0.6), factor=0.2).at(0.5)
    0.2
    >>> Decay(kind="linear").at(0.25)
    0.75
    """

    kind: Literal["step", "cosine", "linear", "triangle", "constant"] = "cosine"
    """"triangle" rises over the first fifth of the run and falls to zero over the rest."""
    milestones: tuple[float, ...] = ()
    """For "step": when the rate drops, as fractions of the run."""
    factor: float = 0.1
    """For "step": what the rate is multiplied by at each milestone."""

    def at(self, progress: float) -> float:
        """The multiplier at this fraction of the run."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "linear":
            return 1 - progress
        if self.kind == "triangle":
            return min(progress / 0.2, (1 - progress) / 0.8)
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        # 1e-9 makes up for rounding, so that epoch 120 of 200 counts as 0.6.
        return self.factor ** sum(progress + 1e-9 >= milestone for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training setup: everything about a run except the seed. Method, selectivity and options are defaults."""

    dataset: str
    model: str
    epochs: int
    source: str
    """Where the setup comes from."""
    decay: Decay
    image_size: int | None = None
    """Pixels per side that images are resized to; None leaves them as they are."""
    batch_size: int = 128
    """Examples in a training step."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    """Momentum of SGD, and the first of AdamW's two."""
    nesterov: bool = True
    bias_rate: float = 1.0
    """Factor on the learning rate of BatchNorm's biases, whose weight decay is as much smaller."""
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    padding: int = 4
    """Pixels of padding on each side, from which crops are drawn at random."""
    flip: bool = True
    bf16: bool = False
    """Whether networks run in bfloat16 where torch.autocast holds it safe. Weights stay in float32."""
    mirrored_test: bool = False
    """Whether a test image counts by the mean of its outputs as it is and mirrored."""
    cutout: int = 0
    """Side of the square that is cut out of each image; 0 for none."""
    method: str = "ledger_backprop"
    """The method that we recommend, or the one that the source uses."""
    selectivity: float = 1 / 3
    """Selectivity that the source uses with the method."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other options that the source uses with the method."""

    def __post_init__(self) -> None:
        names = ("lr", "momentum", "weight_decay", "padding", "cutout")
        require_numbers(**{name: getattr(self, name) for name in names})
        for name in ("epochs", "batch_size"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, got {getattr(self, name)!r}")
        if self.optimizer not in ("sgd", "adamw"):
            raise ValueError(f"optimizer must be sgd or adamw, got {self.optimizer!r}")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0 < self.selectivity <= 1:
            raise ValueError(f"selectivity must be in (0, 1], got {self.selectivity}")

    def lr_at(self, progress: float) -> float:
        """The learning rate at a fraction of the run."""
        return self.lr * self.decay.at(progress)

    def with_(self, **changes: object) -> Recipe:
        """A copy with other values. A decay by milestones stretches with `epochs`.

        >>> RECIPES["cifar10"].with_(epochs=20).decay.milestones
        (0.3, 0.6, 0.8)
        """
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def _steps(*epochs: int, of: int, factor: float) -> Decay:
    return Decay(kind="step", milestones=tuple(epoch / of for epoch in epochs), factor=factor)


_SB = "Jiang et al. 2019, https://arxiv.org/abs/1910.00762"
_CIFAR10 = Recipe(
    dataset="cifar10",
    model="wrn_28_10",
    epochs=200,
    decay=_steps(60, 120, 160, of=200, factor=0.2),
    cutout=16,
    method="selective_backprop",
    selectivity=1 / 3,
    source=_SB,
)
_CIFAR100 = Recipe(
    dataset="cifar100",
    model="wrn_28_10",
    epochs=200,
    decay=_steps(60, 120, of=200, factor=0.1),
    cutout=8,
    method="selective_backprop",
    selectivity=1 / 2,
    source=_SB,
)
_SVHN = Recipe(
    dataset="svhn",
    model="wrn_28_10",
    epochs=160,
    decay=_steps(60, 120, of=160, factor=0.1),
    flip=False,
    cutout=20,
    method="selective_backprop",
    selectivity=1 / 4,
    source=_SB,
)
_DIGITS = Recipe(
    dataset="digits",
    model="small_cnn",
    epochs=24,
    decay=Decay(kind="cosine"),
    batch_size=32,
    padding=0,
    flip=False,
    source="made for a demonstration on two cores",
)


def _small(dataset: str, **more: object) -> Recipe:
    """A recipe for minutes on two cores: half-size images and a network of 75,000 parameters."""
    changes = {"dataset": dataset, "model": "small_resnet", "batch_size": 128, "decay": Decay(kind="linear")}
    source = "made for comparisons on two cores"
    return _DIGITS.with_(**changes, **more, source=source)


_SPEEDRUN = Recipe(
    dataset="cifar10",
    model="speedrun_w16",
    epochs=16,
    decay=Decay(kind="triangle"),
    batch_size=512,
    lr=0.75,
    momentum=0.85,
    bias_rate=64.0,
    weight_decay=1.33e-3,
    label_smoothing=0.2,
    padding=2,
    bf16=True,
    mirrored_test=True,
    source="Jordan 2024, https://arxiv.org/abs/2404.00498, for CPUs: batches of 512, a narrower network",
)
"""A rate of 1.5 per 1,024 examples, and the weight decay that the speedruns have at every rate."""

RECIPES: dict[str, Recipe] = {
    "digits": _DIGITS,
    "mnist_small": _small("mnist", image_size=14, epochs=8, padding=1),
    "fashion_mnist_small": _small("fashion_mnist", image_size=14, epochs=6, padding=1, flip=True),
    "svhn_small": _small("svhn", image_size=16, epochs=8, padding=2, lr=0.2),
    "cifar10_small": _small("cifar10", image_size=16, epochs=6, padding=2, flip=True),
    "cifar10_speedrun": _SPEEDRUN,
    "svhn_speedrun": _SPEEDRUN.with_(dataset="svhn", flip=False, mirrored_test=False),
    "fashion_mnist_speedrun": _SPEEDRUN.with_(dataset="fashion_mnist"),
    "mnist_speedrun": _SPEEDRUN.with_(dataset="mnist", model="speedrun_w8", flip=False, mirrored_test=False),
    "cifar10": _CIFAR10,
    "cifar10_fast": _CIFAR10.with_(epochs=160, decay=_steps(48, 96, 128, of=160, factor=0.2)),
    "cifar100": _CIFAR100,
    "cifar100_fast": _CIFAR100.with_(epochs=160, decay=_steps(48, 96, of=160, factor=0.1)),
    "svhn": _SVHN,
    "svhn_fast": _SVHN.with_(epochs=128, decay=_steps(48, 96, of=128, factor=0.1)),
    "composer": _CIFAR10.with_(
        model="resnet56",
        epochs=160,
        decay=_steps(80, 120, of=160, factor=0.1),
        weight_decay=1e-4,
        cutout=0,
        method="composer_backprop",
        selectivity=0.5,
        source="Composer's method card: ResNet-56, 160 epochs, window 0.5 to 0.9",
    ),
    "composer_imagenet": Recipe(
        dataset="imagenet",
        model="resnet50",
        epochs=90,
        decay=_steps(30, 60, of=90, factor=0.1),
        image_size=224,
        batch_size=256,
        nesterov=False,
        weight_decay=1e-4,
        padding=16,  # the usual crops of random size are not among the augmentations here
        method="composer_backprop",
        selectivity=0.5,
        options={"start": 0.5, "end": 0.9, "interrupt": 2, "scale_factor": 0.5},
        source="Composer's method card: ResNet-50, 90 epochs, window 0.5 to 0.9, scale 0.5; rate of He et al. 2016",
    ),
    "diet": _CIFAR100.with_(
        model="resnet18",
        cutout=0,
        selectivity=0.5,
        source="the Diet-SB poster: EL2N prunes 25%, then SB",
    ),
}


def find_recipe(name: str) -> Recipe:
    """Find a recipe by name.

    >>> find_recipe("cifar10").selectivity == 1 / 3
    True
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
