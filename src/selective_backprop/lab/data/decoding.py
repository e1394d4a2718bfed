"""Finding encoded images, and decoding them into .npy files."""

from __future__ import annotations

import difflib
import functools
import importlib
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

from selective_backprop.files.locks import locked_folder
from selective_backprop.files.reading import open_regular

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
NAMES = ("digits", *_HUB)
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


OpenSplits = Callable[[Path], list[Split]]  # train and test, given a folder for temporary files


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
            return title, _HUB[title], lambda _: _from_hub(title)
    elif not folder.is_dir():
        near = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=0.5)
        meant = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data set or folder {str(name)!r}{meant} (data sets: {', '.join(NAMES)})")
    parts, tables = ([folder.resolve() / f"{part}{end}" for part in ("train", "test")] for end in ("", ".parquet"))
    if all(part.is_dir() for part in parts):
        files = sorted(path for part in parts for path in part.glob("*/[!.]*"))
        return title, _fingerprint(files), lambda _: _from_folders(parts, files)
    if missing := [path.name for path in tables if not path.is_file()]:
        wanted = "train.parquet and test.parquet, or the folders train/<class> and test/<class> with images"
        raise FileNotFoundError(f"{folder} must hold {wanted}; there is no {' and no '.join(missing)}")
    return title, _fingerprint(tables), lambda work: [_from_parquet(path, work) for path in tables]


def _fingerprint(files: Sequence[Path]) -> list[tuple[str, int, int]]:
    return [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]


def _from_hub(name: str) -> list[Split]:
    repository, configuration, *splits = _HUB[name]
    load_dataset = import_extra("datasets").load_dataset
    try:
        with _without_progress_bars():
            tables = load_dataset(repository, configuration, split=splits)
    except Exception as error:  # many kinds of error: no network, no access, offline mode
        raise ConnectionError(
            f"could not load {name} from the Hugging Face Hub as {repository} ({error}). Without the Hub, set "
            "--data-dir, data_dir= or the environment variable SELECTIVE_BACKPROP_DATA to a folder that holds "
            f"{name}/train.parquet and {name}/test.parquet"
        ) from error
    return [_from_table(table, f"{repository}, {split}") for table, split in zip(tables, splits, strict=True)]


def _from_parquet(path: Path, work: Path) -> Split:
    load_dataset, read_metadata = import_extra("datasets").load_dataset, import_extra("pyarrow.parquet").read_metadata
    try:
        if read_metadata(path).num_rows == 0:  # load_dataset fails on an empty table with an unclear error
            return Split(str(path), [], None, lambda: iter(()))
        # streaming=True would need no copy, but after an error its threads go on and abort the process.
        with _without_progress_bars():
            table = load_dataset("parquet", data_files={"train": str(path)}, split="train", cache_dir=str(work))
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno is not None:  # errors of pyarrow about bad content have no errno
            raise _with_needs(cause, work, path.stat().st_size) from error
        raise ValueError(f"{path} cannot be read as parquet because it is damaged or cut short: {cause}") from error
    return _from_table(table, str(path))


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Switch off the progress bars of `datasets` for a while, because they show internal copies."""
    datasets = import_extra("datasets")
    # If the environment variable of `datasets` is set, switching would only make it warn.
    leave = datasets.are_progress_bars_disabled() or datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None
    if not leave:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not leave:
            datasets.enable_progress_bars()


def _from_table(table: Any, source: str) -> Split:
    kinds, encoded_image = table.features, import_extra("datasets").Image(decode=False)
    image = next((column for column in ("image", "img") if column in kinds), None)
    label = next((column for column in ("label", "fine_label") if column in kinds), None)
    if image is None or label is None:
        wanted = "a column image or img and a column label or fine_label"
        raise ValueError(f"{source} needs {wanted}, it has {', '.join(kinds)}")
    labels = list(table[label])
    if wrong := [value for value in labels if not isinstance(value, int)]:
        raise ValueError(f"{source}: the column {label} must hold whole numbers, got {wrong[0]!r}")
    images = table.select_columns([image]).cast_column(image, encoded_image)

    def encoded() -> Iterator[bytes | str]:
        for batch in images.iter(1000):
            for cell in batch[image]:
                if not cell["bytes"]:  # the path could name any file on this machine
                    raise ValueError(
                        f"{source}: a cell of the column {image} holds no image, only the path {cell['path']!r:.80}, "
                        "which is not opened: put the images themselves into the table, or into a folder per class"
                    )
                yield cell["bytes"]

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
            work, finished = Path(name), Path(name) / "finished"
            train, test = open_splits(work)
            classes, (mode, size) = _common_classes(train, test), _common_format(train, test, image_size)
            finished.mkdir()
            for part, split in (("train", train), ("test", test)):
                np.save(finished / f"{part}_labels.npy", np.array(split.labels, dtype=np.int64))
                _write_images(split, mode, size, finished / f"{part}_images.npy")
            (finished / "classes.json").write_text(json.dumps(classes))
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
        raise _with_needs(error, path, math.prod(shape)) from error


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


def _with_needs(error: OSError, path: Path, needed: int) -> OSError:
    return OSError(
        error.errno, f"{error.strerror}; {needed:,} bytes are needed; cache_dir= chooses another folder", str(path)
    )


def check_labels(labels: Tensor, num_classes: int, what: str) -> None:
    """Raise for labels that do not belong to any class."""
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise ValueError(f"{what} must be int64 (N,), got {labels.dtype} {tuple(labels.shape)}")
    if bool((wrong := (labels < 0) | (labels >= num_classes)).any()):
        first = int(wrong.nonzero()[0])
        raise ValueError(f"{what} must be in [0, {num_classes}), got {int(labels[first])} at position {first}")


def import_extra(module: str) -> Any:
    """Import a module of the extra `lab`. If it is missing, the error has the pip line."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'selective-backprop[lab]'") from error
