"""Queue: joins selected examples into full training batches, equally many on every rank.

# B = training batch of a rank, K = selected
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.batches.layout import Column, Layout, move, take_rows
from selective_backprop.batches.padding import Pad, different_shapes, form_of
from selective_backprop.batches.plain import loaded_columns, saved_columns
from selective_backprop.distributed.balance import NO_BYTES, moves_to_even_out, pack, unpack
from selective_backprop.distributed.ranks import Alone, Ranks
from selective_backprop.sampler.id_batches import training_batch_sizes
from selective_backprop.types import Batch, Selection


class Piece(NamedTuple):
    """Selected examples, stored as columns."""

    columns: list[Column]
    ids: Tensor | None
    weights: Tensor
    probabilities: Tensor

    def part(self, rows: slice) -> Piece:
        ids = self.ids[rows] if self.ids is not None else None
        return Piece([column[rows] for column in self.columns], ids, self.weights[rows], self.probabilities[rows])


class Queue:
    """Holds selected examples until a training batch is full. They leave in the order in which they came.

    A candidate batch that can be a training batch unchanged is not copied.

    With several ranks, a batch is full when every rank can fill one. Each rank knows the lengths of all queues. Lengths
    differ by chance, and keep growing apart if one rank's data is harder. When one rank has a batch to spare and
    another has none, examples move between them.

    Args:
        batch_size: examples in a full batch; None if it is not known before the first batch.
        pad: gives pieces of different lengths the same shape.
        ranks: the ranks that train together.
        device: where to put examples that arrive from other ranks.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        pad: Pad | None = None,
        ranks: Ranks | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._pad = pad
        self._ranks = Alone() if ranks is None else ranks
        self._device = torch.device(device)
        self.batch_size = batch_size
        """Examples in a full batch."""
        self.layout: Layout | None = None
        """Column layout shared by all batches. Set from the first one."""
        self.lengths = [0] * self._ranks.size
        """Number of examples that wait on each rank, without those in whole batches."""
        self._holds_back = False
        self._whole: deque[Piece] = deque()  # batches that are given out unchanged
        self._pieces: deque[Piece] = deque()  # pieces that are joined and cut to size
        self._last_sizes: deque[int] | None = None  # sizes of the epoch's last batches, once it has no more candidates

    def __len__(self) -> int:
        """Examples waiting on this rank."""
        waiting = self.lengths[self._ranks.rank]
        return waiting + sum(len(rows.weights) for rows in self._whole) if self._whole else waiting

    @property
    def is_finished(self) -> bool:
        """Whether `finish` has divided what is left into the last batches."""
        return self._last_sizes is not None

    @property
    def num_ready(self) -> int:
        """Batches that can be taken now."""
        if self._last_sizes is not None:
            return len(self._whole) + len(self._last_sizes)
        return len(self._whole) + self._num_full

    @property
    def most_batches(self) -> int:
        """The most batches that the waiting examples can make. It is the same on all ranks, which share them evenly."""
        if self._last_sizes is not None or self.batch_size is None:
            return self.num_ready
        waiting = -(-sum(self.lengths) // self._ranks.size)
        return len(self._whole) + -(-waiting // self.batch_size)

    @property
    def _num_full(self) -> int:
        if self.batch_size is None:
            return 0
        shortest = min(self.lengths) - (-(-self.batch_size // 2) if self._holds_back else 0)
        return max(0, shortest // self.batch_size)

    # ---- adding

    def columns_of(self, data: Any, size: int) -> list[Column]:
        """Split `size` candidates into columns. The very first batch decides on the layout."""
        if not size:
            return []
        if self.layout is None:
            self.layout = Layout.of(data, size)
        return self.layout.columns(data, size)

    def set_layout(self, layout: Layout) -> None:
        """Set the layout of batches, if it is known before anything is added."""
        self.layout = layout

    def hold_back(self, holds_back: bool) -> None:
        """Decide whether half a batch stays behind, so that the epoch's last two batches can share what is left."""
        self._holds_back = holds_back

    def set_batch_size(self, batch_size: int) -> None:
        """Set the size of a full batch. Call this before anything is added."""
        self.batch_size = batch_size

    def add(
        self,
        columns: list[Column],
        selection: Selection,
        ids: Tensor | None,
        counts: list[int] | None = None,
        *,
        keeps_all: bool = False,
    ) -> None:
        """Queue the selected candidates. All ranks must call this.

        Args:
            columns: columns of all candidates, from `columns_of`.
            selection: which of the candidates to queue.
            ids: ids of all candidates.
            counts: number of selected candidates on each rank; None for a single rank.
            keeps_all: whether every candidate is selected exactly once.
        """
        assert self.batch_size is not None
        counts = [selection.positions.numel()] if counts is None else counts
        if count := counts[self._ranks.rank]:
            positions, weights, probabilities = selection.positions, selection.weights, selection.probabilities
            passes = keeps_all and count == self.batch_size and not self.lengths[self._ranks.rank]
            if not passes:
                columns = [take_rows(column, positions) for column in columns]
                ids = ids.index_select(0, positions) if ids is not None else None
                probabilities = probabilities.index_select(0, positions)
            self._pieces.append(Piece(columns, ids, weights, probabilities))
        for rank, more in enumerate(counts):
            self.lengths[rank] += more
        if len(self.lengths) > 1 and min(self.lengths) < self.batch_size and max(self.lengths) >= 2 * self.batch_size:
            self.even_out()

    def add_whole(self, columns: list[Column], selection: Selection, ids: Tensor | None) -> None:
        """Queue all candidates as a training batch of their own, whatever its size."""
        self._whole.append(Piece(columns, ids, selection.weights, selection.probabilities))

    # ---- taking

    def pop(self) -> Batch | None:
        """Take the next batch; None if there is none."""
        if self._whole:
            return self._batch(self._whole.popleft())
        if self._last_sizes is not None:
            if not self._last_sizes:
                return None
            size = self._last_sizes.popleft()
            self.lengths[self._ranks.rank] -= size
            return self._batch(self._first(size))
        if not self._num_full:
            return None
        assert self.batch_size is not None
        size = self.batch_size
        self.lengths = [length - size for length in self.lengths]
        return self._batch(self._first(size))

    def finish(self, *, drop_last: bool) -> int:
        """Prepare what is left for the end of the epoch. Returns how many examples are dropped. All ranks call this.

        The last two batches share what does not fill a batch, so that none is smaller than half of B. All ranks have
        equally many.

        drop_last: drop what does not fill a batch.
        """
        if self.batch_size is None:
            return 0
        self.even_out()
        own = self.lengths[self._ranks.rank]
        sizes = training_batch_sizes(own, self.batch_size, drop_last=drop_last, counts=self.lengths)
        self._last_sizes = deque(sizes.tolist())
        kept = sum(self._last_sizes)
        self._pieces = deque(self._split_off(kept))
        self.lengths[self._ranks.rank] = kept
        return own - kept

    def _first(self, count: int) -> Piece:
        """Take the first `count` waiting examples, joined into one piece."""
        pieces = self._split_off(count)
        if len(pieces) == 1:
            return pieces[0]._replace(columns=[_own_memory(column) for column in pieces[0].columns])
        if self._pad is not None:
            pieces = self._padded(pieces)
        columns = [_join(parts) for parts in zip(*(piece.columns for piece in pieces), strict=True)]
        ids = None if pieces[0].ids is None else torch.cat([piece.ids for piece in pieces if piece.ids is not None])
        weights = torch.cat([piece.weights for piece in pieces])
        return Piece(columns, ids, weights, torch.cat([piece.probabilities for piece in pieces]))

    def _split_off(self, count: int) -> list[Piece]:
        """Take the first `count` waiting examples, in the pieces in which they came."""
        pieces = []
        while count:
            piece = self._pieces.popleft()
            size = piece.weights.numel()
            if size > count:
                self._pieces.appendleft(piece.part(slice(count, None)))
                piece, size = piece.part(slice(count)), count
            pieces.append(piece)
            count -= size
        return pieces

    def _padded(self, pieces: list[Piece]) -> list[Piece]:
        """Pad the pieces so that their columns have the same shape."""
        shapes = {tuple(c.shape[1:] if isinstance(c, Tensor) else () for c in piece.columns) for piece in pieces}
        if len(shapes) == 1:
            return pieces
        assert self._pad is not None and self.layout is not None
        layout = self.layout
        padded = self._pad([layout.batch(piece.columns) for piece in pieces])
        return [piece._replace(columns=layout.columns(batch)) for piece, batch in zip(pieces, padded, strict=True)]

    def _batch(self, rows: Piece) -> Batch:
        assert self.layout is not None
        return Batch(self.layout.batch(rows.columns), rows.ids, rows.weights, rows.probabilities)

    # ---- between ranks

    def even_out(self) -> None:
        """Move examples until all queues are equally long, give or take one example. All ranks must call this."""
        moves, rank = moves_to_even_out(self.lengths), self._ranks.rank
        if not moves:
            return
        leaving = [(to, count) for giver, to, count in moves if giver == rank]
        stay = self._split_off(self.lengths[rank] - sum(count for _, count in leaving))
        parts = [NO_BYTES] * self._ranks.size
        for to, count in reversed(leaving):  # the first receiver gets the last examples
            assert self.layout is not None
            parts[to] = pack(self.layout, self._split_off(count))
        self._pieces.extend(stay)
        for part in self._ranks.exchange(parts):
            if len(part):
                self._receive(part)
        for giver, to, count in moves:
            self.lengths[giver] -= count
            self.lengths[to] += count

    def _receive(self, packed: Tensor) -> None:
        layout, pieces = unpack(packed)
        if self.layout is None:
            self.layout = layout
        for columns, *notes in pieces:
            self._pieces.append(Piece([move(column, self._device) for column in columns], *notes))

    # ---- saving

    def move(self, device: torch.device) -> None:
        """Move waiting examples to this device, and later also those that arrive from other ranks."""
        self._device = device
        for rows in (self._whole, self._pieces):
            there = [piece._replace(columns=[move(column, device) for column in piece.columns]) for piece in rows]
            rows.clear()
            rows.extend(there)

    def state_dict(self) -> dict[str, Any]:
        return {
            "layout": self.layout.state_dict() if self.layout else None,
            "whole": [self._saved(rows) for rows in self._whole],
            "pieces": [self._saved(rows) for rows in self._pieces],
            "lengths": list(self.lengths),
            "last_sizes": None if self._last_sizes is None else list(self._last_sizes),
        }

    def _saved(self, rows: Piece) -> list[Any]:
        assert self.layout is not None
        # clone: a slice would be saved with the whole tensor that it belongs to.
        notes = (None if note is None else note.clone() for note in rows[1:])
        return [saved_columns(self.layout, rows.columns), *notes]

    def _loaded(self, columns: list[Column], *notes: Tensor) -> Piece:
        return Piece([move(column, self._device) for column in loaded_columns(columns)], *notes)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layout = Layout.from_state_dict(state["layout"]) if state["layout"] else None
        self._whole = deque(self._loaded(*rows) for rows in state["whole"])
        self._pieces = deque(self._loaded(*rows) for rows in state["pieces"])
        self.lengths = list(state["lengths"])
        self._last_sizes = None if state["last_sizes"] is None else deque(state["last_sizes"])


def _own_memory(column: Column) -> Column:
    """Copy a slice. A resumed run has a copy of it, and the last bit of a matrix product may depend on its address."""
    if isinstance(column, Tensor) and column.nbytes != column.untyped_storage().nbytes():
        return column.clone()
    return column


def _join(parts: tuple[Column, ...]) -> Column:
    forms = [form_of(part) for part in parts]
    for form in forms:
        if form != forms[0]:
            raise different_shapes(forms[0], form)
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)  # type: ignore[arg-type]
    return [entry for part in parts for entry in part]
