"""Queue: joins selected examples into full training batches, equally many on every rank.

# B = training batch of a rank
"""

from __future__ import annotations

import io
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selective_backprop.chain.id_batches import training_batch_sizes
from selective_backprop.chain.ids import Options
from selective_backprop.chain.saved_batches import loaded, no_plain_batch, saved
from selective_backprop.chain.select import Kept, Select
from selective_backprop.ranks import moves_to_even_out
from selective_backprop.rows import Column, Layout, join, move, require_forms, take
from selective_backprop.run import Run
from selective_backprop.types import Batch

_NO_BYTES = torch.empty(0, dtype=torch.uint8)


class Piece(NamedTuple):
    """Selected examples that wait."""

    columns: list[Column]
    ids: Tensor | None
    weights: Tensor
    probabilities: Tensor

    def part(self, rows: slice) -> Piece:
        ids = None if self.ids is None else self.ids[rows]
        columns = [take(column, rows) for column in self.columns]
        return Piece(columns, ids, self.weights[rows], self.probabilities[rows])


class Queue:
    """Holds selected examples until a training batch is full. They leave in the order in which they came.

    As long as an epoch keeps everything, the user's own batches pass unchanged.

    With several ranks, a batch is full when every rank can fill one. Each rank knows the lengths of all queues. When
    one rank has a batch to spare and another has none, examples move between them.

    Args:
        source: gives out candidate batches and what of them was selected.
        run: counts.
        options: what the user said about batches.
        state: of an epoch that was under way; None begins one.
    """

    def __init__(self, source: Select, run: Run, options: Options, state: dict[str, Any] | None = None) -> None:
        self.source, self.run, self.options = source, run, options
        begin: dict[str, Any] = {
            "layout": None,
            "pieces": [],
            "lengths": [0] * run.ranks.size,
            "behind": 0,
            "sizes": None,
        }
        own = begin if state is None else state["own"]
        self.layout = None if own["layout"] is None else Layout.from_state_dict(own["layout"])
        """How batches are made of columns. It is read from the first batch."""
        self.pieces = deque(Piece(loaded(columns, options.device), *notes) for columns, *notes in own["pieces"])
        self._need_layout()
        self.lengths = list(own["lengths"])
        """Number of examples that wait on each rank."""
        self._behind: int = own["behind"]  # examples that stay for the last two batches of the epoch to share
        self._last = None if own["sizes"] is None else deque(own["sizes"])  # sizes of the last batches, on each rank
        self._first: list[Column] | None = None  # columns that others must be like
        mixes = not run.schedule.never_on and run.policy.selectivity != 1
        self._checks_forms = options.pad is None and (mixes or not options.passes)
        self.of_all_ranks = 0
        """Examples of all ranks in the batch returned last."""

    @property
    def fraction(self) -> float:
        """Fraction of the epoch offered."""
        return self.source.fraction

    def next(self) -> Batch | None:
        """Return the next training batch. All ranks must call this, and all get None at the same time."""
        size = self.options.batch_size
        while self._last is None and (size is None or min(self.lengths) < size + self._behind):
            kept = self.source.next()
            if kept is None:
                self._finish()
                break
            if size is None:  # the user's loader does not say it
                size = self.options.batch_size = max(1, round(max(kept.sizes) * self.run.method.batch_scale))
            columns = self._columns(kept.candidates)
            if self.source.keeps_all and self.options.passes and min(kept.sizes) == max(kept.sizes):
                self.of_all_ranks = sum(kept.sizes)
                return kept.candidates
            self._add(columns, kept, size)
            self._hold_back(size)
        if self._last is None:
            assert size is not None
            sizes = [size] * len(self.lengths)
        elif self._last:
            sizes = self._last.popleft()
        else:
            return None
        pieces, self.of_all_ranks = self._take(sizes[self.run.ranks.rank]), sum(sizes)
        self.lengths = [length - taken for length, taken in zip(self.lengths, sizes, strict=True)]
        self.run.stats.queued = sum(self.lengths)
        assert self.layout is not None
        return join_pieces(pieces, self.layout, self.options.pad)

    def _columns(self, batch: Batch) -> list[Column]:
        size = batch.weights.numel()
        if not size:
            return []
        if self.layout is None:
            self.layout = Layout(batch.data, size)
        columns = self.layout.columns(batch.data, size)
        if self._checks_forms:
            self._first = self._first or columns
            require_forms(self._first, columns)
        return columns

    def _add(self, columns: list[Column], kept: Kept, batch_size: int) -> None:
        """Queue what is selected."""
        batch, selection = kept.candidates, kept.selection
        if count := kept.counts[self.run.ranks.rank]:
            ids, probabilities, rows = batch.ids, selection.probabilities, selection.positions
            is_whole = kept.is_all and count == batch_size and not self.lengths[self.run.ranks.rank]
            if not is_whole:  # a batch that can be a training batch as it is, is not copied
                columns = [take(column, rows) for column in columns]
                ids = None if ids is None else ids.index_select(0, rows)
                probabilities = probabilities.index_select(0, rows)
            self.pieces.append(Piece(columns, ids, selection.weights, probabilities))
        self.lengths = [length + more for length, more in zip(self.lengths, kept.counts, strict=True)]
        self.run.stats.queued = sum(self.lengths)
        if len(self.lengths) > 1 and min(self.lengths) < batch_size and max(self.lengths) >= 2 * batch_size:
            self._even_out()

    def _need_layout(self) -> None:
        """Find the layout of examples that wait, if they are of a class of their own, which a state cannot name."""
        if self.layout is None and self.pieces and (found := self.source.source.stand_in()) is not None:
            self.layout = Layout(found.data, found.size)

    def _hold_back(self, batch_size: int) -> None:
        """Let half a batch stay behind near the end of the epoch, for the last two batches to share."""
        source, left = self.source.source, 1 - self.source.fraction
        expected = left * source.most_candidates * (self.run.policy.selectivity or 0.1)
        # The last candidate batch may be a small one, so it does not count.
        is_near = (
            not source.total or not source.most_candidates or left * source.total < 1.5 or expected < 4 * batch_size
        )
        self._behind = -(-batch_size // 2) if is_near else 0

    def _finish(self) -> None:
        """Divide what is left among the last batches: no rank has candidates any more."""
        size = self.options.batch_size
        self._last = deque()
        if size is None:
            return
        self._even_out()
        drop_last = self.options.drop_last and not (self.source.keeps_all and self.options.passes)
        by_rank = [
            training_batch_sizes(length, size, drop_last=drop_last, counts=self.lengths).tolist()
            for length in self.lengths
        ]
        self._last.extend(map(list, zip(*by_rank, strict=True)))
        kept = [sum(sizes) for sizes in by_rank]
        self.run.stats.dropped += sum(self.lengths) - sum(kept)
        self.lengths = kept
        self.pieces = deque(self._take(kept[self.run.ranks.rank]))
        self.run.stats.queued = sum(kept)

    def _take(self, count: int) -> list[Piece]:
        return take_first(self.pieces, count)

    def _even_out(self) -> None:
        """Move examples until all queues are equally long, give or take one. All ranks must call this."""
        moves, ranks = moves_to_even_out(self.lengths), self.run.ranks
        if not moves:
            return
        leaving = [(to, count) for giver, to, count in moves if giver == ranks.rank]
        stay = self._take(self.lengths[ranks.rank] - sum(count for _, count in leaving))
        parcels = [_NO_BYTES] * ranks.size
        for to, count in reversed(leaving):  # the first receiver gets the last examples
            parcels[to] = _packed(self.layout, self._take(count))
        self.pieces.extend(stay)
        for parcel in ranks.exchange(parcels):
            if len(parcel):
                # Entries of lists may be anything. Ranks trust each other, as in torch's own messages of objects.
                layout, pieces = torch.load(io.BytesIO(parcel.numpy().tobytes()), weights_only=False)
                if self.layout is None and layout is not None:
                    self.layout = Layout.from_state_dict(layout)
                self.pieces.extend(Piece(move(columns, self.options.device), *notes) for columns, *notes in pieces)
        self._need_layout()
        for giver, to, count in moves:
            self.lengths[giver] -= count
            self.lengths[to] += count

    def state_dict(self) -> dict[str, Any]:
        layout, names = None, list[str]()
        if self.layout is not None and self.pieces:
            layout, names = self.layout.state_dict(), self.layout.names()
            if layout is None and self.source.source.step is None:
                raise no_plain_batch(self.layout)
        pieces = [
            [saved(columns, names), *saved(list(notes), ["ids", "weights", "probabilities"])]
            for columns, *notes in self.pieces
        ]
        sizes = None if self._last is None else [list(sizes) for sizes in self._last]
        own = {
            "layout": layout,
            "pieces": pieces,
            "lengths": list(self.lengths),
            "behind": self._behind,
            "sizes": sizes,
        }
        return {"own": own, "source": self.source.state_dict()}


def take_first(waiting: deque[Piece], count: int) -> list[Piece]:
    """Take the first `count` examples, in the pieces in which they came."""
    found = []
    while count:
        piece = waiting.popleft()
        size = piece.weights.numel()
        if size > count:
            waiting.appendleft(piece.part(slice(count, None)))
            piece, size = piece.part(slice(count)), count
        found.append(piece)
        count -= size
    return found


def join_pieces(pieces: list[Piece], layout: Layout, pad: Any) -> Batch:
    """Join pieces into a training batch."""
    if len(pieces) == 1:
        columns, ids, weights, probabilities = pieces[0]
        return Batch(layout.batch([_own_memory(column) for column in columns]), ids, weights, probabilities)
    if pad is not None:
        pieces = _padded(pieces, layout, pad)
    parts: list[list[Any]] = [list(part) for part in zip(*pieces, strict=True)]
    data = layout.batch([join(list(column)) for column in zip(*parts[0], strict=True)])
    ids = None if parts[1][0] is None else torch.cat(parts[1])
    return Batch(data, ids, torch.cat(parts[2]), torch.cat(parts[3]))


def _padded(pieces: list[Piece], layout: Layout, pad: Any) -> list[Piece]:
    """Pad the pieces so that their columns have the same shape."""
    shapes = {tuple(getattr(column, "shape", (0,))[1:] for column in piece.columns) for piece in pieces}
    if len(shapes) > 1:
        found = zip(pieces, pad([layout.batch(piece.columns) for piece in pieces]), strict=True)
        pieces = [piece._replace(columns=layout.columns(data, len(piece.weights))) for piece, data in found]
        for piece in pieces[1:]:
            require_forms(pieces[0].columns, piece.columns)
    return pieces


def _own_memory(column: Column) -> Column:
    """Copy a slice. A resumed run has a copy of it, and the last bit of a matrix product may depend on its address."""
    if isinstance(column, Tensor) and column.nbytes != column.untyped_storage().nbytes():
        return column.clone()
    return column


def _packed(layout: Layout | None, pieces: list[Piece]) -> Tensor:
    """Turn pieces into bytes for another rank."""
    cpu = torch.device("cpu")
    rows = [[[_own_memory(column) for column in move(columns, cpu)], *notes] for columns, *notes in pieces]
    buffer = io.BytesIO()
    torch.save([None if layout is None else layout.state_dict(), rows], buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
