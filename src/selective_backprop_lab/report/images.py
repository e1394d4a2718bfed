"""Training examples of runs: their labels, and images that are small enough to be part of a page."""

from __future__ import annotations

import base64
import dataclasses
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from selective_backprop_lab.data.datasets import NAMES, ImageSet, flip_labels, is_decoded, load_images, split_validation
from selective_backprop_lab.data.decoding import import_extra
from selective_backprop_lab.report.parts import Cell
from selective_backprop_lab.report.runs import Run, printable

LoadData = Callable[[Run], ImageSet]
_LARGEST = 64


def data_of(data_dir: Path | None = None, *, paths: bool = True) -> LoadData:
    """Make a function that loads the data of a run if it is on this machine. A report downloads nothing.

    Args:
        data_dir: folder of the data sets; by default the one in the environment variable SELECTIVE_BACKPROP_DATA.
        paths: whether a run may name any folder of this machine, and have images decoded anew. If a stranger named it,
            the folder may be a private one, and the size of its images may fill the disk.
    """
    loaded: dict[str, ImageSet] = {}

    def load(run: Run) -> ImageSet:
        name, size, validation = run.recipe["dataset"], run.recipe.get("image_size"), run.config.get("validation")
        if ":" in name:
            raise ValueError(f"{name} may be a function, and names of functions in files are not imported")
        here = data_dir or os.environ.get("SELECTIVE_BACKPROP_DATA")
        is_known = name in NAMES and here and (Path(here) / name).is_dir()
        if not (name == "digits" or is_known or (paths and Path(name).is_dir())):
            raise FileNotFoundError(f"{name} is not on this machine")
        if not paths and name not in ("digits", "wordnet") and not is_decoded(name, image_size=size, data_dir=data_dir):
            raise FileNotFoundError(f"{name} is not decoded to this size on this machine")
        key = repr((name, size, validation))
        if key not in loaded:
            data = load_images(name, data_dir=data_dir, image_size=size)
            data = split_validation(data, validation, seed=0) if validation else data
            loaded[key] = dataclasses.replace(data, classes=tuple(printable([*data.classes])))
        return loaded[key]

    return load


def thumbnail(image: Tensor) -> str:
    """Data URI of a uint8 (C, H, W) image, at most 64 pixels wide and high."""
    array = image.permute(1, 2, 0).contiguous().numpy()
    picture = import_extra("PIL.Image").fromarray(array.squeeze(2) if array.shape[2] == 1 else array[:, :, :3])
    picture.thumbnail((_LARGEST, _LARGEST))
    picture.save(buffer := io.BytesIO(), format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def quoted_text(row: Tensor, most: int = 200) -> str:
    """Text of a uint8 (C, H, W) example in quotation marks. Bytes that are no text are shown as numbers.

    >>> import torch
    >>> quoted_text(torch.tensor([[[104, 105, 0, 0]]], dtype=torch.uint8))
    '“hi”'
    >>> quoted_text(torch.tensor([[[1, 255, 7, 0]]], dtype=torch.uint8))
    '“1 255 7 0”'
    """
    content = bytes(row.flatten().tolist())
    text = content.rstrip(b"\0").decode(errors="replace")
    text = text.removesuffix("\ufffd")  # a character that was cut in the middle
    if not all((letter.isprintable() and letter != "\ufffd") or letter.isspace() for letter in text):
        text = " ".join(map(str, content))
    return f"“{text if len(text) <= most else text[: most - 1] + '…'}”"


@dataclass(frozen=True, eq=False)
class Examples:
    """What the page knows and shows of the training examples of a run."""

    data: ImageSet | None = None
    """None if the data are not on this machine."""
    labels: NDArray[np.int64] | None = None
    """Labels that were trained on, with those that the run made wrong."""
    visible: bool = False
    """Whether the page may show examples."""

    @classmethod
    def of(cls, run: Run, size: int, load: LoadData | None, images: bool | None) -> Examples:
        """Load the data of a run with so many examples; `load` and `images` as in `Material`."""
        try:
            data = load(run) if load is not None else None
        except (ValueError, OSError, ImportError):
            data = None  # the run was made on another machine
        if data is None or len(data.train_labels) != size:
            return cls()
        noise, labels = float(run.config.get("label_noise", 0)), data.train_labels
        if noise:
            labels, _ = flip_labels(labels, noise, data.num_classes, seed=run.seed)
        # A folder may have one of these names, too: then the run names its path.
        is_free = data.name in ("digits", "wordnet") and run.recipe["dataset"] == data.name
        return cls(data, labels.numpy(), is_free if images is None else images)

    def class_name(self, label: int) -> str:
        """Name of a class, or its number where the data are not known."""
        return self.data.classes[label] if self.data is not None and 0 <= label < self.data.num_classes else str(label)

    def label_of(self, id: int) -> str:
        """Name of the label that the example was trained with; "" if it is not known."""
        return "" if self.labels is None else self.class_name(int(self.labels[id]))

    def show(self, id: int, words: str = "") -> Cell:
        """A cell with the example's id, and its image or text if it may be shown; `words` is said of it on pointing."""
        hint = f"labelled {self.label_of(id)}{words}" if self.labels is not None else words
        if not self.visible or self.data is None:
            return Cell(str(id), hint=hint)
        example = self.data.train_images[id]
        if self.data.is_text:
            return Cell(str(id), more=quoted_text(example), hint=hint)
        return Cell(str(id), image=thumbnail(example), hint=hint)
