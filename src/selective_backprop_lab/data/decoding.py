"""Finding encoded images, and decoding them into .npy files."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from selective_backprop_lab.files.locks import locked_folder
from selective_backprop_lab.files.reading import open_regular
from selective_backprop_lab.files.writing import sync_folder
from selective_backprop_lab.names import unknown
from selective_backprop_lab.plugins import import_extra as import_extra

_T = TypeVar("_T")
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
_MOST_PIXELS = 89_478_485
"""Largest number of pixels in an image, a quarter of a gigabyte in colour. PIL warns above it, and refuses twice it."""
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats of images that are opened. For others, such as EPS, Pillow would start other programs."""
_MOST_CLASSES = 100_000
"""Most classes of a data set that does not name them. They are as many as the largest label says."""
DATA_VARIABLE = "SELECTIVE_BACKPROP_DATA"


@dataclass(frozen=True)
class Split:
    """Encoded images, as bytes or paths, that can be iterated over more than once."""

    source: str
    labels: list[int]
    classes: tuple[str, ...] | None
    encoded: Callable[[], Iterator[bytes | str]]


OpenSplits = Callable[[], list[Split]]  # train and test


def locate(name: AnyPath, data_dir: AnyPath | None) -> tuple[str, Any, OpenSplits]:
    """Return the data set's title, what identifies its content, and a function that opens it."""
    folder, title = Path(name), Path(name).resolve().name
    if name in _HUB:
        data_dir, title = data_dir or os.environ.get(DATA_VARIABLE, ""), str(name)
        if data_dir and not Path(data_dir).is_dir():
            raise FileNotFoundError(
                f"there is no folder {data_dir}, which --data-dir, data_dir= or ${DATA_VARIABLE} names"
            )
        folder = Path(data_dir, name)
        if not (data_dir and folder.is_dir()):
            return title, _HUB[title], lambda: _from_hub(title)
    elif not folder.is_dir():
        raise unknown("data set or folder", str(name), NAMES)
    parts, tables = ([folder.resolve() / f"{part}{end}" for part in ("train", "test")] for end in ("", ".parquet"))
    if all(part.is_dir() for part in parts):
        files = sorted(path for part in parts for path in part.glob("*/[!.]*"))
        return title, _fingerprint(files), lambda: _from_folders(parts, files)
    if all(table.is_file() for table in tables):
        return title, _fingerprint(tables), lambda: [_from_parquet(path) for path in tables]
    if any(part.is_dir() for part in parts):
        missing = [f"folder {part.name}" for part in parts if not part.is_dir()]
    else:
        missing = [table.name for table in tables if not table.is_file()]
    wanted = "train.parquet and test.parquet, or the folders train/<class> and test/<class> with images"
    raise FileNotFoundError(f"{folder} must hold {wanted}; there is no {' and no '.join(missing)}")


def _fingerprint(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    return [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]


def _from_hub(name: str) -> list[Split]:
    repository, configuration, *splits = _HUB[name]
    load_dataset = import_extra("datasets").load_dataset
    try:
        tables = load_dataset(repository, configuration, split=splits)
    except Exception as error:  # many kinds of error: no network, no access, offline mode
        raise ConnectionError(
            f"could not load {name} from the Hugging Face Hub as {repository} ({error}). Without the Hub, set "
            "--data-dir, data_dir= or the environment variable SELECTIVE_BACKPROP_DATA to a folder that holds "
            f"{name}/train.parquet and {name}/test.parquet"
        ) from error
    return [
        _from_table(f"{repository}, {split}", table.features, functools.partial(_batches_of, table))
        for table, split in zip(tables, splits, strict=True)
    ]


def _batches_of(table: Any, column: str) -> Iterator[Any]:
    return iter(table.select_columns([column]).with_format("arrow").iter(1000))


def _from_parquet(path: Path) -> Split:
    features, parquet = import_extra("datasets").Features, import_extra("pyarrow.parquet")

    def batches(column: str) -> Iterator[Any]:
        with _reading(path):
            yield from parquet.ParquetFile(path).iter_batches(1000, columns=[column])

    with _reading(path):
        kinds = features.from_arrow_schema(parquet.read_schema(path))
    return _from_table(str(path), kinds, batches)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pyarrow raises many kinds
        raise ValueError(f"{path} cannot be read as parquet because it is damaged or cut short: {error}") from error


def _from_table(source: str, kinds: Any, batches: Callable[[str], Iterator[Any]]) -> Split:
    """A split from a table, of which `batches` gives a column in parts."""
    image = next((column for column in ("image", "img") if column in kinds), None)
    label = next((column for column in ("label", "fine_label") if column in kinds), None)
    if image is None or label is None:
        wanted = "a column image or img and a column label or fine_label"
        raise ValueError(f"{source} needs {wanted}, it has {', '.join(kinds)}")
    labels = [value for batch in batches(label) for value in batch.column(0).to_pylist()]
    if wrong := [value for value in labels if not isinstance(value, int)]:
        raise ValueError(f"{source}: the column {label} must hold whole numbers, got {wrong[0]!r}")

    def encoded() -> Iterator[bytes | str]:
        for batch in batches(image):
            for cell in batch.column(0).to_pylist():
                content = cell.get("bytes") if isinstance(cell, dict) else cell
                if not content or not isinstance(content, bytes):  # a path could name any file on this machine
                    raise ValueError(
                        f"{source}: a cell of the column {image} holds no image but {cell!r:.80}; a path is not "
                        "opened: put the images themselves into the table, or into a folder per class"
                    )
                yield content

    names = getattr(kinds[label], "names", None)
    return Split(source, labels, tuple(names) if names else None, encoded)


def _from_folders(parts: Sequence[Path], files: Sequence[Path]) -> list[Split]:
    train, test = ([path for path in files if path.parent.parent == part] for part in parts)
    classes = {name: label for label, name in enumerate(sorted({path.parent.name for path in train}))}
    if unknown := {path.parent.name for path in test} - classes.keys():
        raise ValueError(f"{parts[1]} has classes that {parts[0]} does not have: {', '.join(sorted(unknown))}")
    return [
        Split(
            str(part), [classes[path.parent.name] for path in mine], tuple(classes), functools.partial(map, str, mine)
        )
        for part, mine in zip(parts, (train, test), strict=True)
    ]


def decode(open_splits: OpenSplits, image_size: int | None, cached: Path) -> None:
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
            train, test = open_splits()
            classes, (mode, size) = _common_classes(train, test), _common_format(train, test, image_size)
            finished.mkdir()
            for part, split in (("train", train), ("test", test)):
                np.save(finished / f"{part}_labels.npy", np.array(split.labels, dtype=np.int64))
                _write_images(split, mode, size, finished / f"{part}_images.npy")
            (finished / "classes.json").write_text(json.dumps(classes))
            for file in finished.iterdir():  # or a crash of the machine could leave empty files under the new name
                with file.open("r+b") as written:
                    os.fsync(written.fileno())
            sync_folder(finished)
            finished.rename(cached)


def _common_classes(train: Split, test: Split) -> tuple[str, ...]:
    if empty := [split.source for split in (train, test) if not split.labels]:
        raise ValueError(f"{empty[0]} is empty: it has no images")
    if train.classes != test.classes:
        raise ValueError(f"{train.source} and {test.source} differ in classes: {train.classes} and {test.classes}")
    largest = max(train.labels + test.labels)
    if train.classes is None and largest >= _MOST_CLASSES:
        raise ValueError(
            f"{train.source} and {test.source} have the label {largest}, so {largest + 1:,} classes: number the "
            f"classes from 0, or give them names in the table; {_MOST_CLASSES:,} without names are the most"
        )
    classes = train.classes or tuple(str(label) for label in range(largest + 1))
    for split in (train, test):
        check_labels(torch.tensor(split.labels), len(classes), f"labels of {split.source}")
    return classes


def _common_format(train: Split, test: Split, image_size: int | None) -> tuple[str, tuple[int, int]]:
    """PIL's mode and size for all images. Reads only headers, so it fails before anything is decoded."""
    found = [set(_each(split, lambda image: (image.mode, image.size))) for split in (train, test)]
    both, modes = f"{train.source} and {test.source}", [{mode for mode, _ in formats} for formats in found]
    if deep := [mode for mode in modes[0] | modes[1] if mode[0] in "IF"]:
        raise ValueError(f"images must have 8 bits per channel, but {both} have one with PIL's mode {deep[0]}")
    colours = ["L" if mode <= {"1", "L", "LA"} else "RGB" for mode in modes]
    if colours[0] != colours[1]:
        raise ValueError(f"images must be all grey or all in colour, but {both} have {colours[0]} and {colours[1]}")
    sizes = sorted({size for _, size in found[0] | found[1]})
    if len(sizes) > 1 and image_size is None:
        smallest, largest = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
        raise ValueError(
            f"images of {both} differ in size, such as {smallest} and {largest}: pass image_size=, the height and "
            "width to resize them to"
        )
    return colours[0], (image_size, image_size) if image_size else sizes[0]


def _write_images(split: Split, mode: str, size: tuple[int, int], path: Path) -> None:
    bilinear = import_extra("PIL.Image").Resampling.BILINEAR
    shape = (len(split.labels), len(mode), size[1], size[0])  # the mode, L or RGB, has a letter per channel

    def pixels(image: Any) -> Any:
        image = image.convert(mode)
        image = image if image.size == size else image.resize(size, bilinear)
        return np.moveaxis(np.asarray(image).reshape(*shape[2:], shape[1]), 2, 0).tobytes()

    try:
        # Written to a file, because with a memory map a full disk would kill the process.
        with path.open("wb", buffering=2**20) as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            file.writelines(_each(split, pixels))
    except OSError as error:
        needs = f"{error.strerror}; {math.prod(shape):,} bytes are needed; cache_dir= chooses another folder"
        raise OSError(error.errno, needs, str(path)) from error


def _each(split: Split, read: Callable[[Any], _T]) -> Iterator[_T]:
    """Open each image and yield what `read` returns for it."""
    pillow = import_extra("PIL.Image")
    for number, encoded in enumerate(split.encoded()):
        try:
            with (
                io.BytesIO(encoded) if isinstance(encoded, bytes) else open_regular(encoded) as content,
                _open_image(pillow, content) as image,
            ):
                if (
                    pixels := image.width * image.height
                ) > _MOST_PIXELS:  # known from its header, nothing is decoded yet
                    raise ValueError(
                        f"it has {image.width}x{image.height} = {pixels:,} pixels, more than {_MOST_PIXELS:,}"
                    )
                result = read(image)
        except Exception as error:  # PIL raises many kinds, depending on the format
            which = encoded if isinstance(encoded, str) else f"image {number} of {split.source}"
            raise ValueError(f"{which} cannot be decoded: {error}") from error
        yield result


def _open_image(pillow: Any, content: IO[bytes]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)  # the size is checked by the caller
        return pillow.open(content, formats=_FORMATS)


def check_labels(labels: Tensor, num_classes: int, what: str) -> None:
    """Raise for labels that do not belong to any class."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise ValueError(f"{what} must be int64 (N,), got {labels.dtype} {tuple(labels.shape)}")
    if bool((wrong := (labels < 0) | (labels >= num_classes)).any()):
        first = int(wrong.nonzero()[0])
        raise ValueError(f"{what} must be in [0, {num_classes}), got {int(labels[first])} at position {first}")
