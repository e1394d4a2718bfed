"""Fixed-size training batches out of whatever was selected.

# B = training batch, K = selected
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.batches.layout import Column, Layout, move
from selective_backprop.batches.padding import Pad, different_shapes
from selective_backprop.types import Batch, Selection


class Rows(NamedTuple):
    """Some selected examples."""

    columns: list[Column]
    ids: Tensor | None
    weights: Tensor
    probabilities: Tensor

    def part(self, rows: slice) -> Rows:
        ids = self.ids[rows] if self.ids is not None else None
        return Rows([column[rows] for column in self.columns], ids, self.weights[rows], self.probabilities[rows])


class Assembler:
    """A queue of selected examples that gives them out in full batches, in the order they came.

    A candidate batch that makes a training batch as it is, is not copied.
    """

    def __init__(self, batch_size: int | None = None, pad: Pad | None = None) -> None:
        self._pad = pad
        self.batch_size = batch_size
        """Examples in a full batch. Set it before adding anything."""
        self.layout: Layout | None = None
        """Column layout shared by all batches. Set it from the first one."""
        self._whole: deque[Rows] = deque()  # given out as they came
        self._pieces: deque[Rows] = deque()  # to be joined and cut to size
        self._waiting = 0  # examples in them

    def __len__(self) -> int:
        """Examples waiting."""
        return self._waiting + sum(len(rows.weights) for rows in self._whole)

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting and not self._whole

    @property
    def num_ready(self) -> int:
        """Full batches waiting."""
        return len(self._whole) + (self._waiting // self.batch_size if self.batch_size else 0)

    @property
    def rest(self) -> int:
        """Examples that wait for their batch to fill."""
        return self._waiting % self.batch_size if self.batch_size else 0

    def add(self, columns: list[Column], selection: Selection, ids: Tensor | None, *, as_is: bool = False) -> None:
        """Queue the selected rows.

        Args:
            columns: of the candidates.
            selection: which of them.
            ids: of the candidates.
            as_is: everything is selected, to be given out as one batch of its own whatever its size.
        """
        assert self.batch_size is not None
        positions, weights, probabilities = selection.positions, selection.weights, selection.probabilities
        count = positions.numel()  # a tenth of the time of len, which counts in this place
        if as_is:
            self._whole.append(Rows(columns, ids, weights, probabilities))
            return
        if not count:
            return
        if self._waiting or count != self.batch_size or not selection.keeps_all(len(columns[0])):
            columns = [_take(column, positions) for column in columns]
            ids = ids.index_select(0, positions) if ids is not None else None
            probabilities = probabilities.index_select(0, positions)
        self._pieces.append(Rows(columns, ids, weights, probabilities))
        self._waiting += count

    def pop(self) -> Batch | None:
        """The next full batch, if there is one."""
        if self._whole:
            return self._batch(self._whole.popleft())
        if self.batch_size is None or self._waiting < self.batch_size:
            return None
        return self._batch(self._first(self.batch_size))

    def put_back(self, batch: Batch) -> None:
        """A batch that was given out comes next again, as it is."""
        assert self.layout is not None
        columns = self.layout.columns(batch.data, len(batch))
        self._whole.appendleft(Rows(columns, batch.ids, batch.weights, batch.probabilities))

    def waiting_ids(self) -> Tensor:
        """Ids of the examples that wait, in no particular order; on this rank."""
        known = [rows.ids for rows in (*self._whole, *self._pieces) if rows.ids is not None]
        return torch.cat([torch.empty(0, dtype=torch.int64), *known])

    def add_weight(self, weight: float) -> None:
        """Add this to the weight of every example that waits."""
        for rows in (self._whole, self._pieces):
            heavier = [piece._replace(weights=piece.weights + weight) for piece in rows]
            rows.clear()
            rows.extend(heavier)

    def even_out(self) -> None:
        """Deal out what waits evenly among ranks; alone, there is nothing to do."""

    def fill_batches(self) -> None:
        """Even out where that fills a batch on every rank; alone, there is nothing to do."""

    def flush(self) -> Batch | None:
        """What is left, as a batch that is not full; to be called when no full one is ready."""
        assert not self.num_ready
        return self._batch(self._first(self._waiting)) if self._waiting else None

    def _first(self, count: int) -> Rows:
        """The first `count` waiting examples, as one piece."""
        pieces = self._split_off(count)
        if len(pieces) == 1:
            return pieces[0]
        columns = [_join(parts) for parts in zip(*self._same_shapes(pieces), strict=True)]
        known_ids = [piece.ids for piece in pieces if piece.ids is not None]
        weights = torch.cat([piece.weights for piece in pieces])
        probabilities = torch.cat([piece.probabilities for piece in pieces])
        return Rows(columns, torch.cat(known_ids) if known_ids else None, weights, probabilities)

    def _split_off(self, count: int) -> list[Rows]:
        """The first `count` waiting examples, as they came."""
        pieces = []
        self._waiting -= count
        while count:
            piece = self._pieces.popleft()
            size = piece.weights.numel()
            if size > count:
                self._pieces.appendleft(piece.part(slice(count, None)))
                piece, size = piece.part(slice(count)), count
            pieces.append(piece)
            count -= size
        return pieces

    def _same_shapes(self, rows: list[Rows]) -> list[list[Column]]:
        """The columns of these pieces, padded where they differ."""
        pieces = [piece.columns for piece in rows]
        shapes = {tuple(c.shape[1:] if isinstance(c, Tensor) else () for c in columns) for columns in pieces}
        if self._pad is None or len(shapes) == 1:
            return pieces
        assert self.layout is not None
        return [self.layout.columns(batch) for batch in self._pad([self.layout.batch(piece) for piece in pieces])]

    def _batch(self, rows: Rows) -> Batch:
        assert self.layout is not None
        return Batch(self.layout.batch(rows.columns), rows.ids, rows.weights, rows.probabilities)

    def state_dict(self) -> dict[str, Any]:
        return {
            "layout": self.layout.state_dict() if self.layout else None,
            "whole": [list(rows) for rows in self._whole],
            "pieces": [list(rows) for rows in self._pieces],
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        def load(pieces: list[list[Any]]) -> list[Rows]:
            return [Rows([move(column, device) for column in columns], *notes) for columns, *notes in pieces]

        self.layout = Layout.from_state_dict(state["layout"]) if state["layout"] else None
        self._whole, self._pieces = deque(load(state["whole"])), deque(load(state["pieces"]))
        self._waiting = sum(len(piece.weights) for piece in self._pieces)


def _take(column: Column, positions: Tensor) -> Column:
    if isinstance(column, Tensor):
        # index_select copies, so that the rest of a candidate batch does not stay in memory.
        return column.index_select(0, positions.to(column.device, non_blocking=True))
    return [column[i] for i in positions.tolist()]


def _join(parts: tuple[Column, ...]) -> Column:
    first = parts[0]
    if not isinstance(first, Tensor):
        return [entry for part in parts for entry in part]
    for part in parts:
        assert isinstance(part, Tensor)
        if part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise different_shapes((first.shape[1:], first.dtype), (part.shape[1:], part.dtype))
    return torch.cat(parts)  # type: ignore[arg-type]
