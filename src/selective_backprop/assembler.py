"""Fixed-size training batches out of whatever was selected.

# B = training batch, N = candidates, K = selected
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches import Column, Layout
from selective_backprop.types import Batch


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
        self._ids: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._probabilities: list[Tensor] = []
        self._filled = 0

    def __len__(self) -> int:
        """Examples waiting."""
        return self._filled + sum(len(batch) for batch in self._ready)

    def add(
        self,
        columns: list[Column],
        positions: Tensor,
        ids: Tensor | None,
        weights: Tensor,
        probabilities: Tensor,
        *,
        as_is: bool = False,
    ) -> None:
        """Queue the rows at `positions`; ids, weights and probabilities are theirs, one each.

        as_is: all the rows, to be given out as one batch of their own whatever their number.
        """
        everything = len(positions) == len(columns[0])
        if as_is or (everything and not self._filled and len(positions) == self.batch_size):
            self._ready.append(self._batch(columns, ids, weights, probabilities))
            return
        start = 0
        while start < len(positions):
            end = min(len(positions), start + self.batch_size - self._filled)
            self._copy(columns, positions[start:end])
            if ids is not None:
                self._ids.append(ids[start:end])
            self._weights.append(weights[start:end])
            self._probabilities.append(probabilities[start:end])
            self._filled += end - start
            start = end
            if self._filled == self.batch_size:
                self._ready.append(self._close())

    def pop(self) -> Batch | None:
        """The next full batch, if there is one."""
        return self._ready.popleft() if self._ready else None

    def flush(self) -> Batch | None:
        """What is left, as a batch that is not full; to be called when no full one is ready."""
        assert not self._ready
        return self._close() if self._filled else None

    def _copy(self, columns: list[Column], positions: Tensor) -> None:
        if not self._columns:
            self._columns = [
                column.new_empty((self.batch_size, *column.shape[1:])) if isinstance(column, Tensor) else []
                for column in columns
            ]
        end = self._filled + len(positions)
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
            rows = positions.to(column.device, non_blocking=True)
            torch.index_select(column, 0, rows, out=target[self._filled : end])

    def _close(self) -> Batch:
        columns = [column[: self._filled] for column in self._columns]
        ids = torch.cat(self._ids) if self._ids else None
        batch = self._batch(columns, ids, torch.cat(self._weights), torch.cat(self._probabilities))
        self._columns, self._ids, self._weights, self._probabilities, self._filled = [], [], [], [], 0
        return batch

    def _batch(self, columns: list[Column], ids: Tensor | None, weights: Tensor, probabilities: Tensor) -> Batch:
        assert self.layout is not None
        return Batch(self.layout.batch(columns), ids, weights, probabilities)

    def state_dict(self) -> dict[str, Any]:
        if self.layout is None:
            return {"layout": None}
        # Clones: the batch being filled goes on changing after the state is taken.
        open_columns = [
            column[: self._filled].clone() if isinstance(column, Tensor) else list(column) for column in self._columns
        ]
        ready = [self._piece(self.layout.columns(b.data), b.ids, b.weights, b.probabilities) for b in self._ready]
        if self._filled:
            ids = torch.cat(self._ids) if self._ids else None
            ready.append(self._piece(open_columns, ids, torch.cat(self._weights), torch.cat(self._probabilities)))
        return {"layout": self.layout.state_dict(), "pieces": ready, "last_is_open": self._filled > 0}

    @staticmethod
    def _piece(columns: list[Column], ids: Tensor | None, weights: Tensor, probabilities: Tensor) -> dict[str, Any]:
        return {"columns": columns, "ids": ids, "weights": weights, "probabilities": probabilities}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.__init__(self.batch_size)  # type: ignore[misc]
        if state["layout"] is None:
            return
        self.layout = Layout.from_state_dict(state["layout"])
        for number, piece in enumerate(state["pieces"], start=1):
            columns = [c.to(device) if isinstance(c, Tensor) else c for c in piece["columns"]]
            still_open = state["last_is_open"] and number == len(state["pieces"])
            rows = torch.arange(len(piece["weights"]))
            self.add(columns, rows, piece["ids"], piece["weights"], piece["probabilities"], as_is=not still_open)
