"""Converts the columns of a batch to plain data and back, so that a saved state needs no pickled classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from selective_backprop.batches.layout import Column, Layout, class_name, find_class, parts_of

_AS_IT_IS = (type(None), bool, int, float, str)


def saved_columns(layout: Layout, columns: list[Column]) -> list[Column]:
    """Copy the columns as plain data, which torch.load(weights_only=True) reads.

    Raises a TypeError that names the part of the batch if it holds anything but dense tensors, numpy arrays, numbers,
    strings, bytes, paths, and lists, tuples, dicts and dataclasses of these.
    """
    return [_plain(column, name) for column, name in zip(columns, layout.names(), strict=True)]


def loaded_columns(columns: list[Column]) -> list[Column]:
    """Make the columns that were saved. They are copies, so that writing to them does not change the state.

    >>> column = [{"file": Path("a.png"), "size": numpy.float32(2)}]
    >>> loaded_columns(saved_columns(Layout("column"), [column])) == [column]
    True
    """
    return [_restored(column) for column in columns]


def _plain(value: Any, name: str) -> Any:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    is_dense = kind is Tensor and value.layout is torch.strided and not value.is_nested
    if is_dense:
        return value.clone()  # a slice would be saved with the whole tensor that it belongs to
    if kind is list or kind is tuple:
        return kind(_plain(entry, f"{name}[{place}]") for place, entry in enumerate(value))
    if kind is bytes:
        return {"kind": "bytes", "bytes": _as_tensor(value)}
    if kind is type(Path()):
        return {"kind": "path", "path": str(value)}
    is_scalar = isinstance(value, numpy.generic)
    if (is_scalar or kind in (numpy.ndarray, numpy.memmap)) and value.dtype.kind not in "OV":  # objects, structures
        what = {"kind": "scalar" if is_scalar else "array", "dtype": value.dtype.str, "shape": list(value.shape)}
        return what | {"bytes": _as_tensor(value.tobytes())}
    parts = parts_of(value)
    if parts is None:
        raise TypeError(
            f"cannot save {name}, which is a {'sparse or nested ' * (kind is Tensor)}{kind.__module__}."
            f"{kind.__qualname__}: examples that wait for their batch are saved as plain data, so that loading them "
            "runs no code. Let your collate function make it a dense tensor, a numpy array, a number, a string, a "
            "path, or a list, tuple, dict or dataclass of these. Or save between epochs, when no example waits"
        )
    container, keys, values = parts
    entries = [_plain(entry, f"{name}[{key!r}]") for key, entry in zip(keys, values, strict=True)]
    return {"kind": container, "class": class_name(kind), "keys": _plain([*keys], name), "values": entries}


def _restored(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_restored(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    kind = value["kind"]
    if kind == "bytes":
        return value["bytes"].numpy().tobytes()
    if kind == "path":
        return Path(value["path"])
    if kind in ("array", "scalar"):
        dtype = numpy.dtype(value["dtype"])
        if dtype.kind in "OV":  # pointers, in a file that this module did not write
            raise ValueError(f"a saved numpy array is of type {dtype}: the state is damaged or was tampered with")
        array = numpy.ndarray(value["shape"], dtype, value["bytes"].numpy().tobytes())
        return array[()] if kind == "scalar" else array.copy()  # bytes cannot be written to
    keys, entries = tuple(_restored(value["keys"])), _restored(value["values"])
    return Layout(kind, find_class(value["class"], kind), keys, (Layout("column"),) * len(keys)).batch(entries)


def _as_tensor(content: bytes) -> Tensor:
    # frombuffer takes neither an empty buffer nor one that cannot be written to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
