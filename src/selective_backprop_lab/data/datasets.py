"""Image sets for experiments, decoded once into memory-mapped files.

# N = examples, C = channels, H, W = height and width
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from selective_backprop_lab.data.decoding import NAMES as NAMES
from selective_backprop_lab.data.decoding import PARTS, AnyPath, OpenParts, decode, locate
from selective_backprop_lab.files.reading import read_json
from selective_backprop_lab.plugins import import_extra, load_function

_CACHE_VERSION = 2


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A training set and a test set: images uint8 (N, C, H, W), labels int64 (N,)."""

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    is_text: bool = False
    """Whether the "images" are texts, whose bytes are neither normalised nor augmented."""

    def __post_init__(self) -> None:
        train, test = self.train_images, self.test_images
        for images, labels in ((train, self.train_labels), (test, self.test_labels)):
            if images.dim() != 4 or images.dtype != torch.uint8:
                got = f"{images.dtype} {tuple(images.shape)}"
                raise ValueError(f"{self.name}: images must be uint8 (N, C, H, W), got {got}")
            if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
                got = f"{labels.dtype} {tuple(labels.shape)}"
                raise ValueError(f"{self.name}: labels must be int64, one for each of {len(images)} images, got {got}")
            if bool((wrong := (labels < 0) | (labels >= self.num_classes)).any()):
                first = int(labels[wrong][0])
                raise ValueError(f"{self.name}: labels must be in [0, {self.num_classes}), got {first}")
        if not len(train):
            raise ValueError(f"{self.name} has no images to train on")
        if test.shape[1:] != train.shape[1:]:
            got = f"{self.image_shape} and {tuple(test.shape[1:])}"
            raise ValueError(f"{self.name}: train and test images must have the same shape, got {got}")

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @functools.cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Names of the classes, and number of examples and SHA-256 of images and labels for both parts, as plain data.

        It takes a second for a gigabyte or two. The mean of the images, which a run needs too, takes longer.

        >>> digits = load_images("digits")
        >>> digits.fingerprint["train"]["examples"], len(digits.fingerprint["test"]["labels"])
        (1437, 64)
        """
        parts = {"train": (self.train_images, self.train_labels), "test": (self.test_images, self.test_labels)}
        return {"classes": list(self.classes)} | {
            name: {"examples": len(labels), "images": _digest(images), "labels": _digest(labels)}
            for name, (images, labels) in parts.items()
        }

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.train_images.shape[1:])


def _digest(values: Tensor) -> str:
    digest = hashlib.sha256(repr(tuple(values.shape)).encode())
    for part in torch.split(values, 4096):  # in parts, so that a mapped file is never in memory as a whole
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Images and labels as a map-style data set that loads a whole batch by one indexing operation.

    >>> digits = load_images("digits")
    >>> dataset = ImageDataset(digits.train_images, digits.train_labels)
    >>> loader = torch.utils.data.DataLoader(dataset, 32, shuffle=True, collate_fn=ImageDataset.collate)
    >>> images, labels = next(iter(loader))
    >>> images.shape, labels.dtype
    (torch.Size([32, 1, 8, 8]), torch.int64)
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)

    @staticmethod
    def collate(batch: Any) -> Any:
        """For DataLoader's collate_fn. Returns the batch as it is, since `__getitems__` has made it."""
        return batch


def flip_labels(labels: Tensor, fraction: float, num_classes: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return labels of which exactly round(fraction * N) are wrong, and the (N,) mask of the wrong ones.

    A wrong label is drawn uniformly from the other classes.

    >>> labels, flipped = flip_labels(torch.zeros(6, dtype=torch.int64), 0.5, 3, seed=0)
    >>> int(flipped.sum()), bool((labels[flipped] != 0).all()), labels[~flipped].tolist()
    (3, True, [0, 0, 0])
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, or there is no wrong label; got {num_classes}")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(fraction * len(labels))]
    steps = torch.randint(1, num_classes, (len(chosen),), generator=generator)
    flipped = torch.zeros(len(labels), dtype=torch.bool)
    flipped[chosen] = True
    return labels.index_put((chosen,), (labels[chosen] + steps) % num_classes), flipped


def split_validation(image_set: ImageSet, fraction: float, seed: int) -> ImageSet:
    """Split the training set into a part to train on and a random part to test on, for choosing settings.

    Both parts are copies in memory and keep the order of the training set.

    >>> parts = split_validation(load_images("digits"), 0.1, seed=0)
    >>> len(parts.train_labels), len(parts.test_labels)
    (1293, 144)
    """
    total = len(image_set.train_labels)
    held_out = round(fraction * total) if 0 <= fraction <= 1 else 0
    if not 0 < held_out < total:
        raise ValueError(f"fraction must be in [0, 1] and leave examples in both parts of {total}, got {fraction}")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    parts = [ids.sort().values for ids in (order[held_out:], order[:held_out])]
    train, test = ((image_set.train_images[ids], image_set.train_labels[ids]) for ids in parts)
    return ImageSet(image_set.name, *train, *test, image_set.classes, image_set.is_text)


def load_images(
    name: AnyPath = "digits",
    *,
    image_size: int | None = None,
    data_dir: AnyPath | None = None,
    cache_dir: AnyPath | None = None,
) -> ImageSet:
    """Load an image set by name or from a folder. It is decoded once into memory-mapped files, except the digits.

    Args:
        name: one of `NAMES`; or a folder with train.parquet and test.parquet, or with train/<class>/<image> and
            test/<class>/<image>. Without a part to test on, that part is empty. Parquet files are as on the Hugging
            Face Hub: encoded images in a column image or img, labels in label or fine_label. Or module:function, a
            function that is called with image_size= and data_dir= and returns an ImageSet.
        image_size: resize to this height and width (bilinear). Needed if sizes differ, as in imagenet.
        data_dir: folder that holds <name>/train.parquet and <name>/test.parquet. If <name> is there, it is used
            instead of the Hub. Default: the environment variable SELECTIVE_BACKPROP_DATA.
        cache_dir: where decoded images are kept. Default: selective_backprop in $XDG_CACHE_HOME or ~/.cache.

    >>> digits = load_images("digits")
    >>> len(digits.train_labels), len(digits.test_labels), digits.image_shape, digits.num_classes
    (1437, 360, (1, 8, 8), 10)
    """
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size must be at least 1, got {image_size}")
    if name == "digits":
        if image_size not in (None, 8):
            raise ValueError(f"digits are 8x8 and cannot be resized, got image_size={image_size}")
        return _digits()
    if name == "wordnet":
        from selective_backprop_lab.data.wordnet import load_definitions

        if image_size is not None:
            raise ValueError(f"wordnet holds texts, which have no image_size, got {image_size}")
        return load_definitions(data_dir or os.environ.get("SELECTIVE_BACKPROP_DATA") or ".")
    if isinstance(name, str) and ":" in name and not Path(name).is_dir():
        return _of_user(name, image_size, data_dir)
    title, open_parts, cached = _locate_cache(name, image_size, data_dir, cache_dir)
    if not cached.exists():
        decode(open_parts, image_size, cached)
    try:
        # Copy-on-write: these tensors can be written to, and the file stays as it is.
        files = [cached / f"{part}_{kind}.npy" for part in PARTS for kind in ("images", "labels")]
        tensors = [torch.from_numpy(np.load(file, mmap_mode="c")) for file in files if file.exists()]
        images, labels, *test = tensors
        test = test or [images[:0], labels[:0]]
        return ImageSet(title, images, labels, test[0], test[1], tuple(read_json(cached / "classes.json")))
    except Exception as error:  # numpy raises many kinds, depending on where a file stops making sense
        raise ValueError(f"{cached} is damaged ({error}): delete it, and the images are decoded again") from error


def is_decoded(name: AnyPath, *, image_size: int | None = None, data_dir: AnyPath | None = None) -> bool:
    """Whether `load_images` finds these images decoded. Raises OSError if they are not on this machine."""
    return _locate_cache(name, image_size, data_dir, None)[2].exists()


def _locate_cache(
    name: AnyPath, image_size: int | None, data_dir: AnyPath | None, cache_dir: AnyPath | None
) -> tuple[str, OpenParts, Path]:
    title, identity, open_parts = locate(name, data_dir)
    key = hashlib.sha256(repr((_CACHE_VERSION, identity, image_size)).encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return title, open_parts, Path(cache_dir or caches / "selective_backprop") / f"{title}-{key}"


def _of_user(name: str, image_size: int | None, data_dir: AnyPath | None) -> ImageSet:
    function = load_function("data set", name, "image_size", "data_dir")
    images = function(image_size=image_size, data_dir=data_dir)
    if not isinstance(images, ImageSet):
        raise ValueError(f"data set {name!r} must return an ImageSet, got {type(images).__name__}")
    return images


def _digits() -> ImageSet:
    """scikit-learn's digits, in memory because they are small. The split is the same everywhere."""
    data = import_extra("sklearn.datasets").load_digits()
    images = (torch.from_numpy(data.images).unsqueeze(1) * 255 / 16).round().to(torch.uint8)
    labels = torch.from_numpy(data.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[: 4 * len(order) // 5], order[4 * len(order) // 5 :]
    classes = tuple(str(digit) for digit in range(10))
    return ImageSet("digits", images[train], labels[train], images[test], labels[test], classes)
