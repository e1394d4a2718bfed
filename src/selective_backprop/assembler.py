"""Fixed-size training batches out of whatever was selected.

# B = training batch, N = candidates, K = selected
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches import Column, Layout
from selective_backprop.types import Batch, Selection


class Assembler:
    """A queue of selected examples that gives them out in full batches, in the order they came.

    Rows are copied once, straight into the batch they will be trained in; a candidate batch that makes a
    training batch as it is, is not copied at all.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.layout: Layout | None = None
        self._ready: deque[Batch] = deque()
        self._columns: list[Column] = []  # of the batch being filled
        self._notes: list[tuple[Tensor | None, Tensor, Tensor]] = []  # ids, weights, probabilities of its parts
        self._filled = 0

    def __len__(self) -> int:
        """Examples waiting."""
        return self._filled + sum(len(batch) for batch in self._ready)

    def add(self, columns: list[Column], selection: Selection, ids: Tensor | None, *, as_is: bool = False) -> None:
        """Queue the selected rows.

        Args:
            columns: of the candidates.
            selection: which of them.
            ids: of the candidates.
            as_is: everything is selected, to be given out as one batch of its own whatever its size.
        """
        positions, weights = selection.positions, selection.weights
        count = positions.numel()  # a tenth of the time of len, which counts in this place
        ids = ids.index_select(0, positions) if ids is not None else None
        chances = selection.probabilities.index_select(0, positions)
        if as_is or (not self._filled and count == self.batch_size == len(columns[0])):
            self._ready.append(self._batch(columns, ids, weights, chances))
            return
        space = self.batch_size - self._filled
        while count > space:
            first = ids[:space] if ids is not None else None
            self._fill(columns, positions[:space], first, weights[:space], chances[:space])
            ids = ids[space:] if ids is not None else None
            positions, weights, chances = positions[space:], weights[space:], chances[space:]
            count, space = count - space, self.batch_size
        if count:
            self._fill(columns, positions, ids, weights, chances)

    def pop(self) -> Batch | None:
        """The next full batch, if there is one."""
        return self._ready.popleft() if self._ready else None

    def flush(self) -> Batch | None:
        """What is left, as a batch that is not full; to be called when no full one is ready."""
        assert not self._ready
        return self._close() if self._filled else None

    def _fill(
        self, columns: list[Column], positions: Tensor, ids: Tensor | None, weights: Tensor, chances: Tensor
    ) -> None:
        """Take rows for which there is space."""
        self._copy(columns, positions)
        self._notes.append((ids, weights, chances))
        self._filled += positions.numel()
        if self._filled == self.batch_size:
            self._ready.append(self._close())

    def _copy(self, columns: list[Column], positions: Tensor) -> None:
        if not self._columns:
            self._columns = [
                column.new_empty((self.batch_size, *column.shape[1:])) if isinstance(column, Tensor) else []
                for column in columns
            ]
        place = slice(self._filled, self._filled + positions.numel())
        for column, target in zip(columns, self._columns, strict=True):
            if isinstance(target, list):
                target.extend(column[i] for i in positions.tolist())
                continue
            assert isinstance(column, Tensor)
            if column.shape[1:] != target.shape[1:] or column.dtype != target.dtype:
                raise ValueError(
                    f"examples of shape {tuple(target.shape[1:])} ({target.dtype}) and {tuple(column.shape[1:])} "
                    f"({column.dtype}) cannot share a training batch: pad to one size in the collate function"
                )
            rows = positions if column.device.type == "cpu" else positions.to(column.device, non_blocking=True)
            torch.index_select(column, 0, rows, out=target[place])

    def _close(self) -> Batch:
        columns = [column[: self._filled] for column in self._columns]
        batch = self._batch(columns, *self._joined_notes())
        self._columns, self._notes, self._filled = [], [], 0
        return batch

    def _joined_notes(self) -> tuple[Tensor | None, Tensor, Tensor]:
        ids, weights, probabilities = zip(*self._notes, strict=True)
        return (None if ids[0] is None else torch.cat(ids)), torch.cat(weights), torch.cat(probabilities)

    def _batch(self, columns: list[Column], ids: Tensor | None, weights: Tensor, probabilities: Tensor) -> Batch:
        assert self.layout is not None
        return Batch(self.layout.batch(columns), ids, weights, probabilities)

    def state_dict(self) -> dict[str, Any]:
        if self.layout is None:
            return {"layout": None}
        pieces = [[self.layout.columns(b.data), b.ids, b.weights, b.probabilities] for b in self._ready]
        if self._filled:
            # Clones: the batch being filled goes on changing after the state is taken.
            columns = [c[: self._filled].clone() if isinstance(c, Tensor) else list(c) for c in self._columns]
            pieces.append([columns, *self._joined_notes()])
        return {"layout": self.layout.state_dict(), "pieces": pieces, "last_is_open": self._filled > 0}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.__init__(self.batch_size)  # type: ignore[misc]
        if state["layout"] is None:
            return
        self.layout = Layout.from_state_dict(state["layout"])
        for number, (columns, ids, weights, probabilities) in enumerate(state["pieces"], start=1):
            columns = [column.to(device) if isinstance(column, Tensor) else column for column in columns]
            still_open = state["last_is_open"] and number == len(state["pieces"])
            everything = Selection(torch.arange(len(weights)), weights, probabilities)
            self.add(columns, everything, ids, as_is=not still_open)
