"""Images of training examples, small enough to be part of a page, and the data that they come from."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from selective_backprop.lab.data.datasets import ImageSet, load_images, split_validation
from selective_backprop.lab.data.decoding import import_extra
from selective_backprop.lab.report.runs import Run

LoadData = Callable[[Run], ImageSet]
_LARGEST = 64


def data_of(data_dir: Path | None = None) -> LoadData:
    """Make a function that loads the data of a run if it is on this machine. A report downloads nothing.

    Args:
        data_dir: folder of the data sets; by default the one in the environment variable SELECTIVE_BACKPROP_DATA.
    """
    loaded: dict[str, ImageSet] = {}

    def load(run: Run) -> ImageSet:
        name, size, validation = run.recipe["dataset"], run.recipe.get("image_size"), run.config.get("validation")
        if ":" in name:
            raise ValueError(f"{name} may be a function, and names of functions in files are not imported")
        here = data_dir or os.environ.get("SELECTIVE_BACKPROP_DATA")
        if name != "digits" and not Path(name).is_dir() and not (here and (Path(here) / name).is_dir()):
            raise FileNotFoundError(f"{name} is not on this machine")
        key = repr((name, size, validation))
        if key not in loaded:
            data = load_images(name, data_dir=data_dir, image_size=size)
            loaded[key] = split_validation(data, validation, seed=0) if validation else data
        return loaded[key]

    return load


def thumbnail(image: Tensor) -> str:
    """Data URI of a uint8 (C, H, W) image, at most 64 pixels wide and high."""
    pillow = import_extra("PIL.Image")
    array = image.permute(1, 2, 0).contiguous().numpy()
    picture = pillow.fromarray(array.squeeze(2) if array.shape[2] == 1 else array[:, :, :3])
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
    if text.endswith("\ufffd"):
        text = text[:-1]  # a character that was cut in the middle
    if not all((letter.isprintable() and letter != "\ufffd") or letter.isspace() for letter in text):
        text = " ".join(map(str, content))
    return f"“{text if len(text) <= most else text[: most - 1] + '…'}”"


@dataclass(frozen=True, eq=False)
class Shown:
    """How the training examples of a run are shown: as pictures, as texts, or not at all."""

    data: ImageSet | None
    """None if the data are not on this machine."""
    visible: bool = False
    """Whether the page may show examples."""

    @classmethod
    def of(cls, run: Run, size: int, load: LoadData | None, images: bool | None) -> Shown:
        """Load the data of a run with so many examples.

        images: whether to show examples; None: only of data that anybody may pass on.
        """
        try:
            data = load(run) if load is not None else None
        except (ValueError, OSError, ImportError):
            data = None  # the run was made on another machine
        if data is None or len(data.train_labels) != size:
            return cls(None)
        # A folder may have one of these names, too: then the run names its path.
        is_free = data.name in ("digits", "wordnet") and run.recipe["dataset"] == data.name
        return cls(data, is_free if images is None else images)

    def class_name(self, label: int) -> str:
        known = self.data is not None and 0 <= label < self.data.num_classes
        return self.data.classes[label] if known and self.data is not None else str(label)

    def image(self, id: int) -> str:
        """Image of an example as a data URI; "" if it is not to be shown or a text."""
        return (
            "" if not self.visible or self.data is None or self.data.is_text else thumbnail(self.data.train_images[id])
        )

    @property
    def columns(self) -> dict[str, Callable[[int], str]]:
        """The column of a table that shows examples, if they are to be shown."""
        if self.data is None or not self.visible:
            return {}
        images = self.data.train_images
        return {"text": lambda id: quoted_text(images[id])} if self.data.is_text else {"image": self.image}
