"""Divides batches of any structure into columns: tensors, or lists, with one entry per example.

# N = examples in the batch
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

Column = Tensor | list[Any]
KINDS = ("column", "none", "sequence", "mapping", "record")
"""What a part of a batch is: a column itself, None, or a container of other parts."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Describes how a batch is made of columns. It is read from the first batch and used for all later ones.

    A list or tuple inside a batch may hold one entry per example (file names, boxes) or be a group of columns. The
    first batch decides which; a later, shorter batch must not be read differently.

    >>> layout = Layout.of({"image": torch.zeros(2, 5), "name": ["a", "b"]})
    >>> columns = layout.columns({"image": torch.ones(3, 5), "name": ["c", "d", "e"]})
    >>> layout.batch([column[:1] for column in columns])
    {'image': tensor([[1., 1., 1., 1., 1.]]), 'name': ['c']}
    """

    kind: str  # one of KINDS
    cls: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[Layout, ...] = ()

    @staticmethod
    def of(batch: Any, num_rows: int | None = None) -> Layout:
        """Read the layout of a batch. num_rows: its number of examples, if known."""
        rows = count_rows(batch) if num_rows is None else num_rows
        try:
            layout = _read(batch, rows, nested=False)
            layout.columns(batch, rows)
        except (TypeError, ValueError) as error:
            lengths = _lengths(batch)
            if num_rows is not None and len(lengths) == 1 and lengths != {num_rows}:
                raise OtherNumberError(lengths.pop(), num_rows) from error
            raise
        return layout

    def columns(self, batch: Any, num_rows: int | None = None) -> list[Column]:
        """Divide a batch of this layout into columns."""
        found: list[Column] = []
        self._collect(batch, found)
        rows = num_rows if num_rows is not None else len(found[0]) if found else 0
        for column in found:
            if len(column) != rows:
                if len({len(other) for other in found}) == 1:
                    raise OtherNumberError(len(column), rows)
                shape = tuple(column.shape) if isinstance(column, Tensor) else f"a list of {len(column)}"
                raise ValueError(
                    f"every part of a batch needs one entry per example: expected {rows} rows, found {shape}"
                )
        return found

    def batch(self, columns: list[Column]) -> Any:
        """Make a batch of these columns."""
        return self._build(iter(columns))

    def _collect(self, batch: Any, found: list[Column]) -> None:
        if self.kind == "column" and isinstance(batch, Tensor | list | tuple):
            found.append(batch if isinstance(batch, Tensor) else list(batch))
            return
        kind, keys, values = parts_of(batch) or ("none" if batch is None else "column", (), [])
        named = dict(zip(keys, values, strict=True))
        if kind != self.kind or kind == "column" or named.keys() != set(self.keys):
            raise OtherStructureError(
                f"the batches changed their structure: expected {self._describe()}, got {batch!r:.200}. Let the "
                "collate function give every batch the same entries, of the same kind"
            )
        for key, child in zip(self.keys, self.children, strict=True):
            child._collect(named[key], found)

    def _build(self, columns: Any) -> Any:
        if self.kind == "column":
            return next(columns)
        if self.kind == "none":
            return None
        assert self.cls is not None
        cls: Any = self.cls
        values = [child._build(columns) for child in self.children]
        if self.kind == "sequence":
            return cls(*values) if hasattr(cls, "_fields") else cls(values)
        named = dict(zip(self.keys, values, strict=True))
        try:
            if issubclass(cls, defaultdict):
                return cls(None, named)  # what makes its defaults is no part of a batch
            return _record(cls, named) if self.kind == "record" else cls(named)
        except TypeError as error:
            raise TypeError(
                f"cannot make a {cls.__name__} of selected examples from its parts {list(self.keys)}: {error}. "
                "Let the collate function return a dict"
            ) from error

    def names(self, name: str = "batch") -> list[str]:
        """Name each column by its place in the batch, for errors.

        >>> Layout.of({"image": torch.zeros(2, 5), "boxes": [[1], [2, 3]]}).names()
        ["batch['image']", "batch['boxes']"]
        """
        if self.kind == "column":
            return [name]
        places = [f"{name}.{key}" if self.kind == "record" else f"{name}[{key!r}]" for key in self.keys]
        return [found for child, place in zip(self.children, places, strict=False) for found in child.names(place)]

    def _describe(self) -> str:
        if self.cls is None:
            return "None" if self.kind == "none" else "a tensor or a list with one entry per example"
        return f"{self.cls.__name__} of {list(self.keys)}"

    def state_dict(self) -> dict[str, Any]:
        """Return plain data, so that a checkpoint needs no pickled classes."""
        if odd := [key for key in self.keys if type(key) not in (str, int, float, bool, type(None))]:
            raise TypeError(f"cannot save batches with the key {odd[0]!r}: use strings as the keys of a batch")
        cls = class_name(self.cls) if self.cls else ""
        children = [child.state_dict() for child in self.children]
        return {"kind": self.kind, "class": cls, "keys": list(self.keys), "children": children}

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> Layout:
        children = tuple(Layout.from_state_dict(child) for child in state["children"])
        return Layout(state["kind"], find_class(state["class"], state["kind"]), tuple(state["keys"]), children)


class OtherNumberError(ValueError):
    """A batch has another number of examples than was asked for."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"a batch has {found} examples where the sampler asked for {expected}: a collate function or a transform "
            "that drops or adds examples leaves it open which ids are in the batch. Leave examples out in the sampler "
            "or in the data set instead. If each item of your data set is a whole batch already, pass a DataLoader "
            "with batch_size=None and a method that needs no ids, such as sb.selective_backprop()"
        )


class OtherStructureError(ValueError):
    """A batch has other parts than the first one."""


class RowCheck:
    """Checks that batches have as many examples as were asked for. Batches that are not divided by examples pass.

    Some batches hold examples in another way, such as sequences one after the other in a single row. The first batch
    tells which kind they are.
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._is_first = True

    def __call__(self, batch: Any, num_rows: int) -> None:
        """Raise if this batch has another number of examples."""
        if self._layout is not None:
            with suppress(OtherStructureError):  # batches pass unchanged, so each may have its own
                self._layout.columns(batch, num_rows)
        elif self._is_first:
            self._is_first = False
            try:
                self._layout = Layout.of(batch, num_rows)
            except OtherNumberError:
                raise
            except (TypeError, ValueError):
                pass


def _lengths(batch: Any) -> set[int]:
    """Return the lengths of the tensors and lists at the top of a batch, if it consists of nothing else."""
    parts = parts_of(batch)
    values = [] if parts is None else parts[2]
    is_plain = all(isinstance(value, list) or (isinstance(value, Tensor) and value.dim()) for value in values)
    return {len(value) for value in values} if is_plain and len(values) > 1 else set()


def count_rows(batch: Any) -> int:
    """Count the examples in a batch whose ids are not known.

    The number is the length of the first tensor that is not inside a nested list. Without such a tensor, lists decide:
    tensors of equal shape are taken for columns, anything else for one entry per example.
    """
    tensor = _first_tensor(batch, nested=False)
    if tensor is not None:
        if tensor.dim() == 0:
            raise ValueError("the batch's first tensor has no dimensions: examples go along the first one")
        return len(tensor)
    entries = _first_list(batch)
    if entries is None:
        raise TypeError(f"cannot find the examples in a batch of type {type(batch).__name__}")
    shapes = {entry.shape if isinstance(entry, Tensor) else None for entry in entries}
    return len(entries[0]) if len(shapes) == 1 and shapes != {None} else len(entries)


def take_rows(column: Column, positions: Tensor) -> Column:
    """Copy these rows of a column, so that the rest of its batch does not stay in memory.

    >>> take_rows(["a", "b", "c"], torch.tensor([2, 0]))
    ['c', 'a']
    """
    if isinstance(column, Tensor):
        return column.index_select(0, positions.to(column.device, non_blocking=True))
    return [column[i] for i in positions.tolist()]


def move(value: Any, device: torch.device, *, non_blocking: bool = True) -> Any:
    """Move every tensor in the value to the device. With non_blocking, copies from pinned memory do not wait."""
    return map_tensors(value, operator.methodcaller("to", device, non_blocking=non_blocking))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same value, with `change` applied to every tensor in it; the value itself if no tensor changes."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is list or type(value) is tuple:  # the usual batch, in a quarter of the time and calls
        return type(value)([map_tensors(part, change) for part in value])
    parts = parts_of(value)
    if parts is None:
        return value
    changed = [map_tensors(part, change) for part in parts[2]]
    if all(one is other for one, other in zip(changed, parts[2], strict=True)):
        return value
    return with_values(value, changed)


def entries(batch: Any) -> dict[Any, Any]:
    """Return the values of a batch by key, name or position."""
    parts = parts_of(batch)
    if parts is None:
        raise TypeError(f"a batch of type {type(batch).__name__} has no entries: expected a dict, tuple or dataclass")
    return dict(zip(parts[1], parts[2], strict=True))


def with_values(batch: Any, values: list[Any]) -> Any:
    """Make the same kind of batch with other values, in the order of `entries`."""
    parts = parts_of(batch)
    assert parts is not None
    made = Layout(parts[0], type(batch), parts[1], tuple(Layout("column") for _ in values)).batch(values)
    if parts[0] == "record":
        _require_all(batch, made)
    return made


def _require_all(batch: Any, made: Any) -> None:
    """Raise if a dataclass that was made anew lacks what the first one has."""
    there, here = (getattr(one, "__dict__", {}) for one in (made, batch))
    lost = [name for name, value in here.items() if value is not None and there.get(name) is None]
    if lost:
        raise ValueError(
            f"{type(batch).__qualname__}.{lost[0]} was set after the batch was made, and would be lost when it is "
            "moved or examples are picked from it: let __init__ take it, or __post_init__ compute it"
        )


def _first_tensor(value: Any, *, nested: bool) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    parts = parts_of(value)
    if parts is None or (nested and parts[0] == "sequence"):
        return None
    found = (_first_tensor(part, nested=True) for part in parts[2])
    return next((tensor for tensor in found if tensor is not None), None)


def _first_list(value: Any) -> list[Any] | None:
    """Find the first innermost list, for example of file names or of images of different sizes."""
    parts = parts_of(value)
    if parts is None:
        return None
    inner = (_first_list(part) for part in parts[2])
    first = next((entries for entries in inner if entries is not None), None)
    return first if first is not None else parts[2] if parts[0] == "sequence" and parts[2] else None


def parts_of(value: Any) -> tuple[str, tuple[Any, ...], list[Any]] | None:
    """Return kind, keys and values of a container; None for anything else."""
    if isinstance(value, Mapping):
        return "mapping", tuple(value), list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        return "record", names, [getattr(value, name) for name in names]
    if isinstance(value, (list, tuple)):
        return "sequence", tuple(range(len(value))), list(value)
    return None


def _read(value: Any, rows: int, *, nested: bool) -> Layout:
    if value is None:
        return Layout("none")
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested:
            kind = "nested" if value.is_nested else "sparse"
            raise TypeError(
                f"cannot pick examples from a {kind} tensor: make it dense in the collate function, or use a method "
                "that decides before loading, such as sb.ledger_backprop(), which passes batches on as they are"
            )
        if value.dim() == 0 or len(value) != rows:
            raise ValueError(
                f"a tensor of shape {tuple(value.shape)} in a batch of {rows} examples: examples go along the first "
                "dimension"
            )
        return Layout("column")
    parts = parts_of(value)
    if parts is None:
        contrastive = (
            ". A contrastive loss with in-batch negatives, as in sentence-transformers, has no loss per example and "
            "cannot be used"
        )
        raise TypeError(
            f"cannot pick examples from a {type(value).__name__} in a batch: make it a tensor or a list with one "
            f"entry per example in the collate function{contrastive if isinstance(value, str) else ''}"
        )
    kind, keys, values = parts
    if kind == "record":
        with_values(value, values)  # which raises if something would be lost
    if kind == "sequence" and len(values) == rows:
        spans = [_spans(part, rows) for part in values]
        if not all(spans):
            return Layout("column")
        if nested:
            raise ValueError(
                f"with {rows} examples in the batch, a {type(value).__name__} of {rows} parts may be one entry per "
                "example or a group of columns: use a dict for columns, or another batch size"
            )
    return Layout(kind, type(value), keys, tuple(_read(part, rows, nested=True) for part in values))


def _spans(value: Any, rows: int) -> bool:
    """Whether a value can be a column, or several columns, of `rows` rows."""
    if isinstance(value, Tensor):
        return value.dim() > 0 and len(value) == rows
    parts = parts_of(value)
    if parts is None:
        return value is None
    return (parts[0] == "sequence" and len(parts[2]) == rows) or all(_spans(part, rows) for part in parts[2])


def _record(cls: Any, fields: dict[str, Any]) -> Any:
    """Make a dataclass. Its __post_init__ may check its fields, but not change them: what it does was done before."""
    versions = {
        name: value._version for name, value in fields.items() if isinstance(value, Tensor) and not value.is_inference()
    }
    made = cls(**fields)
    for name, value in fields.items():
        found = getattr(made, name)
        if isinstance(value, Tensor):
            is_same = found is value or (isinstance(found, Tensor) and _equal(found, value))
            is_same = is_same and (name not in versions or versions[name] == value._version)
        else:
            is_same = found is value or not isinstance(value, int | float | str) or found == value
        if not is_same:
            raise ValueError(
                f"{cls.__qualname__} changes its field {name} when it is made, and a batch is made anew when it is "
                "moved or examples are picked from it, so the change would be applied again: make it in the collate "
                "function or in the data set, not in __post_init__"
            )
    return made


def _equal(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device) and torch.equal(one, other)


def class_name(cls: type) -> str:
    """Return the name by which `find_class` finds this class of batches. Raises if it would find none."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    found = _look_up(name)
    if found is not cls:
        raise ValueError(
            f"cannot save a batch of the class {cls.__qualname__}, because no other process could find it by that name "
            f"in {cls.__module__}: define it at the top of its module, not inside a function, or let the collate "
            "function return a dict"
        )
    return name


def find_class(name: str, kind: str) -> type | None:
    """Find a container class by name, among modules already imported: loading a checkpoint must not import anything.

    It must be of this kind: a class that is called in another way than its own could do anything.
    """
    if kind in ("column", "none") and not name:
        return None
    found = _look_up(name)
    base: Any = {"sequence": (list, tuple), "mapping": Mapping}.get(kind)
    is_record = kind == "record" and dataclasses.is_dataclass(found)
    if not isinstance(found, type) or not (is_record or (base is not None and issubclass(found, base))):
        raise ValueError(f"the saved queue holds batches of type {name}: import it before load_state_dict()")
    return found


def _look_up(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
