"""The ledger: what is known about every example, in one row per id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

_NAN = float("nan")
_ONE = torch.ones(1, dtype=torch.int32)  # to add to counts


class Event(NamedTuple):
    """Something new about n examples: scores of a selection pass, or losses of a training step."""

    values: Tensor
    """(n,) float32: the new scores or losses."""
    epochs: Tensor
    """(n,) int32: when they were computed."""
    values_before: Tensor
    """(n,) float32: the scores or losses that they replace; NaN where there was none."""
    epochs_before: Tensor
    """(n,) int32: when those were computed; -1 where there was none."""


Update = Callable[[Tensor, Event], Tensor]
"""A function from a column's rows, (n,) or (n, width), and an event to the rows that replace them."""


@dataclass(frozen=True)
class Column:
    """Declares a column of the ledger, besides those that every ledger has. A scorer lists its own in `Needs.columns`.

    That is all there is to do: the ledger makes the column, updates it, and saves it. With several ranks, each row is
    on one rank, which applies the events of all ranks to it.

    Args:
        event: what updates the column: a "score" from a selection pass, or a "loss" from a training step.
        update: what to write then, such as `before` or `shift`. It happens once in an epoch, at an
            example's first score or loss: what was before is what was before this epoch.
        width: how many values an example has. By default it is a single one, and the column has the shape (M,).
        dtype: type of the values.
        fill: value before anything is written.

    >>> ledger = Ledger(2, {"previous": Column("loss", before)})
    >>> for epoch, loss in enumerate([5.0, 4.0, 3.0]):
    ...     ledger.record_losses(torch.tensor([1]), torch.tensor([loss]), epoch)
    >>> ledger.previous.tolist(), ledger.loss.tolist()
    ([nan, 4.0], [nan, 3.0])
    """

    event: Literal["score", "loss"]
    update: Update
    width: int | None = None
    dtype: torch.dtype = torch.float32
    fill: float = _NAN

    def make(self, num_examples: int) -> Tensor:
        """Make an empty column."""
        shape = (num_examples,) if self.width is None else (num_examples, self.width)
        return torch.full(shape, self.fill, dtype=self.dtype)


def before(column: Tensor, event: Event) -> Tensor:
    """Keep the value before the last one."""
    return event.values_before


def epoch_before(column: Tensor, event: Event) -> Tensor:
    """Keep the epoch of the value before the last one. The column is of type int32, filled with -1."""
    return event.epochs_before


def shift(column: Tensor, event: Event) -> Tensor:
    """Keep the values before the last one, newest first. There are as many as the column is wide."""
    return torch.cat([event.values_before[:, None], column], dim=1)[:, :-1]


class _Kind(NamedTuple):
    dtype: torch.dtype
    fill: float


class Columns:
    """Declares the columns that every ledger has. Subclasses decide which rows they have. M = number of rows."""

    score: Annotated[Tensor, _Kind(torch.float32, _NAN)]
    """(M,) The last score from a selection pass; NaN if there was none."""
    score_epoch: Annotated[Tensor, _Kind(torch.int32, -1)]
    """(M,) The epoch of this score; -1 if there was none."""
    loss: Annotated[Tensor, _Kind(torch.float32, _NAN)]
    """(M,) The last loss from training, as given to `SelectiveLoader.loss` or `SelectiveSampler.update`; NaN if there
    was none."""
    loss_epoch: Annotated[Tensor, _Kind(torch.int32, -1)]
    """(M,) The epoch of this loss; -1 if there was none."""
    probability: Annotated[Tensor, _Kind(torch.float32, _NAN)]
    """(M,) The selection probability that the example had when it was last a candidate; NaN if it never was."""
    offered: Annotated[Tensor, _Kind(torch.int32, 0)]
    """(M,) How often the example was a candidate."""
    selected: Annotated[Tensor, _Kind(torch.int32, 0)]
    """(M,) How often the example was selected for training."""


_ALWAYS: dict[str, _Kind] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Columns, include_extras=True).items()
}


class LedgerRows(Columns):
    """The rows of some ids in a ledger. Row i of each column belongs to the i-th id.

    The columns are those of `Ledger`. A column is fetched when it is first read: an epoch may have millions of ids, a
    scorer reads only one or two columns, and if ranks share a ledger, fetching means asking other ranks.

    Args:
        names: the names of the columns.
        fetch: returns the column of this name.

    >>> ledger = Ledger(3)
    >>> ledger.record_losses(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> rows = ledger.rows(torch.tensor([2, 1, 2]))
    >>> rows.loss.tolist(), rows.loss_epoch.tolist()
    ([0.5, nan, 0.5], [4, -1, 4])
    """

    def __init__(self, names: Iterable[str], fetch: Callable[[str], Tensor]) -> None:
        self._names, self._fetch = tuple(names), fetch

    def __getattr__(self, name: str) -> Tensor:
        """Fetch a column when it is first read."""
        _require_column(name, self.__dict__.get("_names", ()))
        column = self._fetch(name)
        setattr(self, name, column)
        return column


class Ledger(Columns):
    """One row per example id, on the CPU. A row takes 28 bytes, and what declared columns take.

    Args:
        num_examples: M.
        columns: further columns by name, as scorers declare them.

    >>> ledger = Ledger(3)
    >>> ledger.record_scores(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=4)
    >>> ledger.score.tolist(), ledger.loss.tolist()
    ([1.5, nan, 0.5], [nan, nan, nan])
    """

    def __init__(self, num_examples: int, columns: Mapping[str, Column] | None = None) -> None:
        self.columns = dict(columns or {})
        """The declared columns."""
        for name, kind in _ALWAYS.items():
            setattr(self, name, torch.full((num_examples,), kind.fill, dtype=kind.dtype))
        for name, column in self.columns.items():
            if not name.isidentifier() or name in _ALWAYS or hasattr(Ledger, name):
                raise ValueError(f"{name!r} cannot be the name of a further column of the ledger: choose another")
            setattr(self, name, column.make(num_examples))
        self.names = (*_ALWAYS, *self.columns)
        """The names of all columns."""
        self._updated_by: dict[str, dict[str, Column]] = {"score": {}, "loss": {}}  # declared, by event
        for name, column in self.columns.items():
            self._updated_by[column.event][name] = column

    def __getattr__(self, name: str) -> Tensor:
        """Raise: declared columns are found before this is called."""
        _require_column(name, self.__dict__.get("names", ()))
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self.loss)

    def rows(self, ids: Tensor) -> LedgerRows:
        """Look up these ids, row by row."""
        # index_select takes a third of the time of indexing.
        return LedgerRows(self.names, lambda name: getattr(self, name).index_select(0, ids))

    def has_losses(self) -> bool:
        """Whether the training loss of any example is known."""
        return bool((self.loss_epoch >= 0).any())

    def deliver(self) -> None:
        """Send writes to other ranks. A process that trains alone has nothing to do here."""

    def whole(self) -> Ledger:
        """Return a ledger with all rows: this one. With several ranks, each has only a part of the rows."""
        return self

    def record_scores(self, ids: Tensor, scores: Tensor, epoch: int | Tensor) -> None:
        """Store scores of a selection pass. epoch: one number for all ids, or one per id (int32)."""
        self._record("score", ids, scores, epoch)

    def record_losses(self, ids: Tensor, losses: Tensor, epoch: int | Tensor) -> None:
        """Store losses of a training step. epoch: one number for all ids, or one per id (int32)."""
        self._record("loss", ids, losses, epoch)

    def _record(self, event: Literal["score", "loss"], ids: Tensor, values: Tensor, epoch: int | Tensor) -> None:
        last, last_epoch = (self.score, self.score_epoch) if event == "score" else (self.loss, self.loss_epoch)
        values = values.to(torch.float32)
        if self._updated_by[event]:
            self._update_declared(event, ids, values, epoch, last, last_epoch)
        # index_copy_ and index_fill_ take half of the time of indexing.
        last.index_copy_(0, ids, values)
        if isinstance(epoch, Tensor):
            last_epoch.index_copy_(0, ids, epoch.to(torch.int32))
        else:
            last_epoch.index_fill_(0, ids, epoch)

    def _update_declared(
        self, event: str, ids: Tensor, values: Tensor, epoch: int | Tensor, last: Tensor, last_epoch: Tensor
    ) -> None:
        """Update the declared columns that an event of this kind updates."""
        epochs = torch.as_tensor(epoch, dtype=torch.int32).expand(len(ids))
        new = Event(values, epochs, last.index_select(0, ids), last_epoch.index_select(0, ids))
        is_due = new.epochs_before != epochs
        for name, column in self._updated_by[event].items():
            values_of: Tensor = getattr(self, name)
            rows = values_of.index_select(0, ids)
            updated = column.update(rows, new).to(column.dtype)
            values_of.index_copy_(0, ids, updated.where(is_due if column.width is None else is_due[:, None], rows))

    def record_probabilities(self, ids: Tensor, probabilities: Tensor) -> None:
        """Store each candidate's selection probability."""
        self.probability.index_copy_(0, ids, probabilities.to(torch.float32))

    def count_offered(self, ids: Tensor) -> None:
        # index_add_, not +=: an id may occur twice in a batch when the sampler draws with replacement.
        self.offered.index_add_(0, ids, _ONE.expand(ids.numel()))

    def count_selected(self, ids: Tensor) -> None:
        self.selected.index_add_(0, ids, _ONE.expand(ids.numel()))

    def state_dict(self, *, copy: bool = True) -> dict[str, Tensor]:
        """Return all columns by name. copy: whether they stay as they are when the ledger is written to."""
        columns: dict[str, Tensor] = {name: getattr(self, name) for name in self.names}
        return {name: column.clone() for name, column in columns.items()} if copy else columns

    def check_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raise if a saved state does not fit this ledger."""
        if not isinstance(state, dict):
            raise ValueError(f"this is not the state of a ledger, which is a dict of columns: got {state!r:.100}")
        if names := set(self.names) - state.keys():
            raise ValueError(
                f"the saved ledger lacks {', '.join(sorted(names))}: it was saved by another method, or it is damaged"
            )
        if wrong := [name for name in self.names if not isinstance(state[name], Tensor)]:
            raise ValueError(f"the saved ledger's {wrong[0]} is {state[wrong[0]]!r:.80}, not a tensor: it is damaged")
        if len(state["loss"]) != len(self):
            raise ValueError(
                f"saved ledger has {len(state['loss'])} examples but the data set has {len(self)}: "
                "was it saved for another data set, or has this one changed?"
            )
        for name in self.names:
            if state[name].shape != getattr(self, name).shape:
                there, here = tuple(state[name].shape), tuple(getattr(self, name).shape)
                raise ValueError(
                    f"the saved ledger's {name} has shape {there}, but this ledger's has {here}: was it saved by "
                    "another method?"
                )
            if state[name].dtype != getattr(self, name).dtype or state[name].layout != torch.strided:
                raise ValueError(
                    f"the saved ledger's {name} is a tensor of {state[name].dtype} ({state[name].layout}), but this "
                    f"ledger's is of {getattr(self, name).dtype}: it is damaged, or was saved by another method"
                )
        if infinite := [name for name in ("score", "loss", "probability") if bool(state[name].isinf().any())]:
            raise ValueError(f"the saved ledger has an infinite {infinite[0]}: it is damaged, or was edited")

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.check_state_dict(state)
        for name in self.names:
            getattr(self, name).copy_(state[name].detach())


def _require_column(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise AttributeError(f"a ledger has no column {name!r}, only {', '.join(names)}")


def occurrences(ids: Tensor) -> Tensor:
    """Count, for each place, how often its id occurs before it.

    >>> occurrences(torch.tensor([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    in_order, order = ids.sort(stable=True)
    before = torch.arange(len(ids)) - torch.searchsorted(in_order, in_order)
    return torch.empty_like(before).index_copy_(0, order, before)
