"""Batches as columns: tensors, arrays and lists with one entry per example.

A batch may be any nesting of dicts, lists, tuples and other containers that torch's pytree knows, such as named tuples
and registered dataclasses. At the top it may be any mapping.

# N = examples in the batch
"""

from __future__ import annotations

import copy
import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_PLAIN = (dict, list, tuple, OrderedDict, int)
Column = Tensor | numpy.ndarray[Any, Any] | list[Any] | None


def map_tensors(data: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same value, with `change` applied to every tensor in it."""
    if not _is_odd(data):
        return pytree.tree_map_only(Tensor, change, data)
    return _filled(data, pytree.tree_map_only(Tensor, change, dict(data)))


def move(data: Any, device: torch.device, *, non_blocking: bool = True) -> Any:
    """Move every tensor to the device. With non_blocking, copies from pinned memory do not wait.

    A batch of a class of its own is moved by its own `to`, if it has one.
    """
    if not isinstance(data, (Tensor, Mapping)) and pytree.tree_is_leaf(data):
        return data.to(device) if hasattr(data, "to") else data
    return map_tensors(data, operator.methodcaller("to", device, non_blocking=non_blocking))


def _is_odd(data: Any) -> bool:
    """Whether this is a mapping that pytree does not know, such as the batches of tokenizers."""
    return isinstance(data, Mapping) and type(data) not in pytree.SUPPORTED_NODES


def _filled(data: Any, values: dict[Any, Any]) -> Any:
    made = copy.copy(data)
    made.update(values)
    return made


def entries(data: Any) -> dict[Any, Any]:
    """Return the values of a batch by key, name or position."""
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, list | tuple):
        return dict(enumerate(data))
    if hasattr(data, "__dataclass_fields__"):
        return {name: getattr(data, name) for name in data.__dataclass_fields__}
    raise TypeError(f"a batch of type {type(data).__name__} has no entries: expected a dict, tuple or dataclass")


def with_entries(data: Any, values: dict[Any, Any]) -> Any:
    """Return a copy of the batch with these entries replaced."""
    if isinstance(data, Mapping) or hasattr(data, "__dataclass_fields__"):
        made = copy.copy(data)
        for name, value in values.items():
            if isinstance(made, Mapping):
                made[name] = value  # type: ignore[index]
            else:
                setattr(made, name, value)
        return made
    changed = [values.get(place, value) for place, value in enumerate(data)]
    return type(data)(*changed) if hasattr(data, "_fields") else type(data)(changed)


def count_rows(data: Any) -> int:
    """Count the examples in a batch whose ids are not known.

    The number is the length of the first tensor, or array. Without any, it is the length of the first list inside.

    >>> count_rows({"image": torch.zeros(2, 5), "name": ["a", "b"]}), count_rows([["a", "b", "c"], [1, 2, 3]])
    (2, 3)
    """
    leaves = pytree.tree_leaves(dict(data) if _is_odd(data) else data)
    found = next((leaf for leaf in leaves if isinstance(leaf, (Tensor, numpy.ndarray))), None)
    inner = list(data.values()) if isinstance(data, Mapping) else data
    if isinstance(inner, (list, tuple)) and inner and not _same_shapes(leaves):
        return len(next((entry for entry in inner if isinstance(entry, list)), inner))
    if found is None or not found.ndim:
        raise TypeError(
            f"cannot find the examples in a batch of type {type(data).__name__}: it needs a tensor whose first "
            "dimension goes along examples"
        )
    return len(found)


def _same_shapes(leaves: list[Any]) -> bool:
    """Whether there are tensors, and they go along the same number of rows."""
    lengths = {leaf.shape[:1] for leaf in leaves if isinstance(leaf, (Tensor, numpy.ndarray))}
    return len(lengths) == 1


def require_rows(data: Any, size: int) -> None:
    """Raise if all parts of a batch agree on another number of examples than was asked for.

    Batches that are not divided by examples pass, such as sequences one after the other in a single row.
    """
    parts = list(data.values()) if isinstance(data, Mapping) else data
    if isinstance(parts, (list, tuple)) and len(parts) > 1:
        lengths = {
            len(part) if isinstance(part, list) or (isinstance(part, Tensor) and part.ndim) else size for part in parts
        }
        if len(lengths) == 1 and size not in lengths:
            raise other_number(lengths.pop(), size)


def other_number(found: int, expected: int) -> ValueError:
    """Make the error for a batch with another number of examples than was asked for."""
    return ValueError(
        f"a batch has {found} examples where the sampler asked for {expected}: a collate function or a transform "
        "that drops or adds examples leaves it open which ids are in the batch. Leave examples out in the sampler "
        "or in the data set instead. If each item of your data set is a whole batch already, pass a DataLoader "
        "with batch_size=None and a method that needs no ids, such as sb.selective_backprop()"
    )


class Layout:
    """Describes how batches are made of columns. It is read from the first batch and used for all later ones.

    A list inside a batch may hold one entry per example (file names, boxes) or be a group of columns. The first batch
    decides which; a later, shorter batch must not be read differently.

    Args:
        data: the first batch.
        size: N.

    >>> layout = Layout({"image": torch.zeros(2, 5), "name": ["a", "b"]}, 2)
    >>> columns = layout.columns({"image": torch.ones(3, 5), "name": ["c", "d", "e"]}, 3)
    >>> layout.batch([column[:1] for column in columns])
    {'image': tensor([[1., 1., 1., 1., 1.]]), 'name': ['c']}
    """

    def __init__(self, data: Any, size: int) -> None:
        self._kind = type(data).__name__ + (f" of {list(data)}" if isinstance(data, Mapping) else "")
        plain = dict(data) if _is_odd(data) else data
        self.spec = pytree.tree_structure(plain, functools.partial(_is_column, size=size, whole=plain))
        self._as_it_is = data if _is_odd(data) else None

    def columns(self, data: Any, size: int) -> list[Column]:
        """Divide a batch of this layout into columns."""
        try:
            leaves = self.spec.flatten_up_to(data if self._as_it_is is None else dict(data))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the batches changed their structure: expected a {self._kind}, got {data!r:.100}. Let the collate "
                "function give every batch the same entries, of the same kind"
            ) from error
        for leaf in leaves:
            if leaf is not None and not (_has_rows(leaf) and len(leaf) == size):
                raise _no_column(leaf, leaves, size)
        return [list(leaf) if type(leaf) is tuple else leaf for leaf in leaves]

    def batch(self, columns: list[Column]) -> Any:
        """Make a batch of these columns."""
        made = pytree.tree_unflatten(columns, self.spec)
        return made if self._as_it_is is None else _filled(self._as_it_is, made)

    def names(self) -> list[str]:
        """Name each column by its place in the batch, for errors."""
        places = pytree.tree_unflatten(list(range(self.spec.num_leaves)), self.spec)
        return [f"batch{pytree.keystr(path)}" for path, _ in pytree.tree_leaves_with_path(places)]

    def state_dict(self) -> Any:
        """Return a batch that has the number of each column in its place, if that is plain data; else None."""
        places = pytree.tree_unflatten(list(range(self.spec.num_leaves)), self.spec)
        return places if _is_plain(places) else None

    @staticmethod
    def from_state_dict(state: Any) -> Layout:
        layout = Layout.__new__(Layout)
        layout._kind, layout.spec, layout._as_it_is = type(state).__name__, pytree.tree_structure(state), None
        return layout


def _is_column(node: Any, size: int, whole: Any) -> bool:
    """Whether a list or tuple has one entry per example, and is no group of columns."""
    if not isinstance(node, (list, tuple)) or len(node) != size:
        return False
    are_columns = all(isinstance(part, (Tensor, numpy.ndarray, list, tuple)) and len(part) == size for part in node)
    if are_columns and node is not whole and size > 1:
        raise ValueError(
            f"with {size} examples in the batch, a {type(node).__name__} of {size} parts may be one entry per example "
            "or a group of columns: use a dict for columns, or another batch size"
        )
    return not are_columns


def _has_rows(value: Any) -> bool:
    """Whether examples can be picked from a value."""
    if isinstance(value, Tensor):
        return value.ndim > 0 and value.layout is torch.strided and not value.is_nested
    return isinstance(value, (list, tuple)) or (isinstance(value, numpy.ndarray) and value.ndim > 0)


def _no_column(leaf: Any, leaves: list[Any], size: int) -> Exception:
    lengths = {len(one) for one in leaves if _has_rows(one)}
    odd = isinstance(leaf, Tensor) and bool(leaf.ndim) and not _has_rows(leaf)
    if len(lengths) == 1 and size not in lengths and all(map(_has_rows, leaves)):
        return other_number(lengths.pop(), size)
    if isinstance(leaf, (Tensor, numpy.ndarray)) and not odd:
        return ValueError(
            f"every part of a batch needs one entry per example: a tensor of shape {tuple(leaf.shape)} in a batch of "
            f"{size} examples"
        )
    if isinstance(leaf, (list, tuple)):
        return ValueError(
            f"every part of a batch needs one entry per example: expected {size} rows, found a list of {len(leaf)}"
        )
    return TypeError(
        f"cannot pick examples from a {'sparse or nested tensor' if odd else type(leaf).__name__} in a "
        "batch: make it a dense tensor or a list with one entry per example in the collate function, register its "
        "class by torch.export.register_dataclass, or use a method that decides before loading, such as "
        "sb.ledger_backprop(), which passes batches on as they are. A contrastive loss with in-batch negatives has no "
        "loss per example and cannot be used"
    )


def take(column: Column, rows: Tensor | slice) -> Column:
    """Take some rows of a column. By positions they are copied, so that the rest of the batch does not stay in memory.

    >>> take(["a", "b", "c"], torch.tensor([2, 0]))
    ['c', 'a']
    """
    if isinstance(column, Tensor):
        return (
            column[rows]
            if isinstance(rows, slice)
            else column.index_select(0, rows.to(column.device, non_blocking=True))
        )
    if column is None or isinstance(rows, slice):
        return None if column is None else column[rows]
    return column[rows.numpy()] if isinstance(column, numpy.ndarray) else [column[i] for i in rows.tolist()]


def form_of(column: Column) -> tuple[Any, Any]:
    """Return the shape and dtype of an example. Only columns for which they are the same can be joined."""
    is_list = column is None or isinstance(column, list)
    return ((), "a list") if is_list else (tuple(column.shape[1:]), column.dtype)  # type: ignore[union-attr]


def require_forms(columns: list[Column], others: list[Column]) -> None:
    """Raise if examples of two batches cannot share a training batch."""
    for one, other in zip(columns, others, strict=True):
        (shape, kind), (other_shape, other_kind) = form_of(one), form_of(other)
        if (shape, kind) != (other_shape, other_kind):
            raise ValueError(
                f"examples of shape {shape} ({kind}) and {other_shape} ({other_kind}) cannot share a training batch: "
                "pad to one size in the collate function, or pass pad= to SelectiveLoader, such as pad_to_longest"
            )


def join(parts: list[Column]) -> Column:
    """Join pieces of a column. The result has memory of its own."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if len(parts) > 1 else first.clone()  # type: ignore[arg-type]
    if first is None:
        return None
    if isinstance(first, numpy.ndarray):
        return numpy.concatenate(parts)  # type: ignore[arg-type]
    return [entry for part in parts for entry in part]  # type: ignore[union-attr]


def _is_plain(places: Any) -> bool:
    """Whether a batch is made of plain containers only."""
    parts = places.values() if isinstance(places, dict) else () if isinstance(places, int) else places
    return type(places) in _PLAIN and all(map(_is_plain, parts))
