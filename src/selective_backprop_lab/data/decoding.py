"""Finding encoded images, and decoding them into .npy files."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from selective_backprop_lab.files.locks import locked_folder
from selective_backprop_lab.names import unknown
from selective_backprop_lab.plugins import import_extra as import_extra

AnyPath = str | os.PathLike[str]
_HUB = {  # repository, configuration, splits to train and to test on
    "mnist": ("ylecun/mnist", None, "train", "test"),
    "fashion_mnist": ("zalando-datasets/fashion_mnist", None, "train", "test"),
    "cifar10": ("uoft-cs/cifar10", None, "train", "test"),
    "cifar100": ("uoft-cs/cifar100", None, "train", "test"),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits", "train", "test"),
    "svhn_extra": ("ufldl-stanford/svhn", "cropped_digits", "train+extra", "test"),
    "imagenet": ("ILSVRC/imagenet-1k", None, "train", "validation"),
}
NAMES = ("digits", "wordnet", *_HUB)
PARTS = ("train", "test")
DATA_VARIABLE = "SELECTIVE_BACKPROP_DATA"
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats of images that are opened. For others, such as EPS, Pillow would start other programs."""


_COLUMNS = ("image", "img"), ("label", "fine_label")


class Part(NamedTuple):
    """Encoded images to train or to test on."""

    source: str
    table: Any
    """A data set of `datasets`."""
    from_files: bool
    """Whether images are files of their own. Otherwise a path in a cell could name any file on this machine."""


OpenParts = Callable[[], dict[str, Part]]


def locate(name: AnyPath, data_dir: AnyPath | None) -> tuple[str, Any, OpenParts]:
    """Return the data set's title, what identifies its content, and a function that opens it, in one part or two."""
    folder, title = Path(name).resolve(), Path(name).resolve().name
    if name in _HUB:
        data_dir, title = data_dir or os.environ.get(DATA_VARIABLE, ""), str(name)
        if data_dir and not Path(data_dir).is_dir():
            raise FileNotFoundError(
                f"there is no folder {data_dir}, which --data-dir, data_dir= or ${DATA_VARIABLE} names"
            )
        folder = Path(data_dir, title).resolve()
        if not (data_dir and folder.is_dir()):
            return title, _HUB[title], partial(_from_hub, title)
    elif not folder.is_dir():
        raise unknown("data set or folder", str(name), NAMES)
    for builder, pattern in (("imagefolder", "{}/*/*"), ("parquet", "{}.parquet")):
        found = {part: sorted(folder.glob(pattern.format(part))) for part in PARTS}
        if found["train"]:
            files = {part: str(folder / pattern.format(part)) for part in PARTS if found[part]}
            every = [(str(path), path.stat()) for part in PARTS for path in found[part]]
            identity = [(path, status.st_size, status.st_mtime_ns) for path, status in every]
            return title, identity, partial(_from_files, builder, files)
    wanted = "train.parquet and test.parquet, or the folders train/<class> and test/<class> with images"
    raise FileNotFoundError(f"{folder} must hold {wanted}")


def _from_hub(name: str) -> dict[str, Part]:
    repository, configuration, *splits = _HUB[name]
    try:
        tables = import_extra("datasets").load_dataset(repository, configuration, split=splits)
    except Exception as error:  # many kinds of error: no network, no access, offline mode
        raise ConnectionError(
            f"could not load {name} from the Hugging Face Hub as {repository} ({error}). Without the Hub, set "
            "--data-dir, data_dir= or the environment variable SELECTIVE_BACKPROP_DATA to a folder that holds "
            f"{name}/train.parquet and {name}/test.parquet"
        ) from error
    sources = (f"{repository}, {split}" for split in splits)
    return {name: Part(source, table, False) for name, source, table in zip(PARTS, sources, tables, strict=True)}


def _from_files(builder: str, files: dict[str, str]) -> dict[str, Part]:
    load, own = import_extra("datasets").load_dataset, builder == "imagefolder"
    more = {"drop_labels": False} if own else {}
    parts = {}
    for part, source in files.items():
        try:
            table = load(builder, data_files=source, split="train", streaming=True, **more)
        except Exception as error:  # pyarrow raises many kinds
            raise ValueError(f"{source} cannot be read as {builder}: {error}") from error
        parts[part] = Part(source.removesuffix("/*/*"), table, own)
    return parts


def decode(open_parts: OpenParts, image_size: int | None, cached: Path) -> None:
    """Write a folder of .npy files under a temporary name, then rename it, so that it is never half-written.

    One process at a time decodes into a cache. Another one waits, and may then find its images there.
    """
    parent = cached.parent
    parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(parent, patience=math.inf):
        for left in parent.glob(".decoding-*"):  # by processes that were killed; they may be large
            shutil.rmtree(left, ignore_errors=True)
        if cached.exists():
            return
        with tempfile.TemporaryDirectory(prefix=".decoding-", dir=parent) as name:
            finished = Path(name) / "finished"
            finished.mkdir()
            parts = open_parts()
            looks = [_look(part) for part in parts.values()]
            classes, (mode, size) = _classes(looks), _format(looks, image_size)
            for (name, part), look in zip(parts.items(), looks, strict=True):
                np.save(finished / f"{name}_labels.npy", np.array(look.labels, dtype=np.int64))
                _write_images(part, len(look.labels), mode, size, finished / f"{name}_images.npy")
            (finished / "classes.json").write_text(json.dumps(classes))
            finished.rename(cached)


class _Look(NamedTuple):
    """What labels and headers tell, before anything is decoded."""

    labels: list[int]
    classes: tuple[str, ...] | None
    modes: set[str]
    sizes: set[tuple[int, int]]


def _look(part: Part) -> _Look:
    names = getattr(part.table.features[_columns(part)[1]], "names", None)
    look = _Look([], tuple(names) if names else None, set(), set())
    for label, (mode, size) in _each(part, lambda image: (image.mode, image.size)):
        if not isinstance(label, int):
            raise ValueError(f"{part.source}: labels must be whole numbers, got {label!r}")
        look.labels.append(label)
        look.modes.add(mode)
        look.sizes.add(size)
    if not look.labels:
        raise ValueError(f"{part.source} is empty: it has no images")
    return look


def _columns(part: Part) -> tuple[str, str]:
    found = [next((name for name in names if name in part.table.features), "") for names in _COLUMNS]
    if not all(found):
        wanted = "a column image or img and a column label or fine_label"
        raise ValueError(f"{part.source} needs {wanted}, it has {', '.join(part.table.features)}")
    return found[0], found[1]


def _each(part: Part, read: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Open each image, and yield its label and what `read` returns for it."""
    (image, label), pillow = _columns(part), import_extra("PIL.Image")
    table = part.table.select_columns([image, label]).cast_column(image, import_extra("datasets").Image(decode=False))
    done = 0
    try:
        for row in table:
            content = row[image]["path"] if part.from_files else io.BytesIO(row[image]["bytes"])
            with pillow.open(content, formats=_FORMATS) as opened:
                result = read(opened)
            yield row[label], result
            done += 1
    except Exception as error:  # Pillow and pyarrow raise many kinds
        raise ValueError(f"image {done} of {part.source} cannot be decoded: {error}") from error


def _classes(looks: list[_Look]) -> tuple[str, ...]:
    known = looks[0].classes
    for look in looks[1:]:
        if look.classes == known:
            continue
        if not known or not look.classes or not set(look.classes) <= set(known):
            raise ValueError(f"the parts to train and to test on differ in classes: {known} and {look.classes}")
        look.labels[:] = [known.index(look.classes[label]) for label in look.labels]  # some have no test images
    labels = {label for look in looks for label in look.labels}
    names = known or tuple(str(label) for label in range(max(labels) + 1))
    if wrong := [label for label in labels if not 0 <= label < len(names)]:
        raise ValueError(f"labels must be in [0, {len(names)}), got {wrong[0]}")
    return names


def _format(looks: list[_Look], image_size: int | None) -> tuple[str, tuple[int, int]]:
    """Pillow's mode and size for all images."""
    if deep := [mode for look in looks for mode in look.modes if mode[0] in "IF"]:
        raise ValueError(f"images must have 8 bits per channel, got Pillow's mode {deep[0]}")
    colours = {"L" if look.modes <= {"1", "L", "LA"} else "RGB" for look in looks}
    if len(colours) > 1:
        raise ValueError("images to train and to test on must be all grey or all in colour")
    sizes = sorted({size for look in looks for size in look.sizes})
    if len(sizes) > 1 and image_size is None:
        smallest, largest = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
        raise ValueError(
            f"images differ in size, such as {smallest} and {largest}: pass --image-size (image_size=), the height and "
            "width to resize them to"
        )
    return colours.pop(), (image_size, image_size) if image_size else sizes[0]


def _write_images(part: Part, count: int, mode: str, size: tuple[int, int], path: Path) -> None:
    bilinear = import_extra("PIL.Image").Resampling.BILINEAR
    shape = (count, len(mode), size[1], size[0])  # the mode, L or RGB, has a letter per channel

    def pixels(image: Any) -> bytes:
        image = image.convert(mode)
        image = image if image.size == size else image.resize(size, bilinear)
        return np.moveaxis(np.asarray(image).reshape(*shape[2:], shape[1]), 2, 0).tobytes()

    # Written to a file, because with a memory map a full disk would kill the process.
    with path.open("wb", buffering=2**20) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.writelines(content for _, content in _each(part, pixels))
