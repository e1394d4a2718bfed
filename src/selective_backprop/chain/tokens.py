"""TokenQueue: joins selected examples of similar length into training batches of about as many tokens each.

# T = length of an example, after its padding is cut off
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import torch

from selective_backprop.chain.ids import Options
from selective_backprop.chain.padding import PadToLongest
from selective_backprop.chain.queue import Piece, join_pieces, take_first
from selective_backprop.chain.saved_batches import loaded, saved
from selective_backprop.rows import Layout, take
from selective_backprop.run import Run
from selective_backprop.types import Batch

_RATIO = 2**0.25  # of the longest and the shortest example that may share a batch, so little is padded


class TokenQueue:
    """Holds selected examples by length. A batch has as many of similar length as fit a number of tokens, padded.

    Each range of lengths has a queue of its own. When the epoch ends, what is left moves to the next longer range, so
    that only a few smaller batches remain. It works in a single process.

    Args:
        source: `Select`, or `Load` in a planned epoch.
        run: counts.
        options: the most tokens in a batch, and the padding, which tells where padding is.
        state: of an epoch that was under way; None begins one.
    """

    def __init__(self, source: Any, run: Run, options: Options, state: dict[str, Any] | None = None) -> None:
        assert isinstance(options.pad, PadToLongest) and options.batch_tokens is not None
        self.source, self.run, self.options = source, run, options
        self._trim, self._tokens = options.pad, options.batch_tokens
        own = {"layout": None, "ranges": {}, "is_over": False} if state is None else state["own"]
        self._layout = None if own["layout"] is None else Layout.from_state_dict(own["layout"])
        self._ranges: dict[int, deque[Piece]] = {
            int(number): deque(Piece(loaded(columns, options.device), *notes) for columns, *notes in pieces)
            for number, pieces in own["ranges"].items()
        }
        self._is_over: bool = own["is_over"]
        self.of_all_ranks = 0
        """Examples in the batch returned last."""

    @property
    def fraction(self) -> float:
        """Fraction of the epoch offered."""
        return float(self.source.fraction)

    def next(self) -> Batch | None:
        """Return the next training batch; None at the end of the epoch."""
        while not self._is_over and not any(self._is_full(number) for number in self._ranges):
            found = self.source.next()
            if found is None:
                self._is_over = True
            elif isinstance(found, Batch):
                self._add(found)
            else:
                rows, selection = found.selection.positions, found.selection
                self._add(found.candidates, rows, selection.weights, selection.probabilities)
        full = next((number for number in self._ranges if self._is_full(number)), None)
        batch = self._rest() if full is None else self._joined(full, self._size(full))
        if batch is not None:
            self.of_all_ranks = len(batch)
            self.run.stats.queued = sum(map(self._count, self._ranges))
        return batch

    def _size(self, number: int) -> int:
        """Return how many examples of this range fill a batch."""
        return max(1, self._tokens // max(1, math.floor(_RATIO**number + 1e-6)))

    def _count(self, number: int) -> int:
        return sum(len(piece.weights) for piece in self._ranges[number])

    def _is_full(self, number: int) -> bool:
        return self._count(number) >= self._size(number)

    def _add(self, batch: Batch, rows: Any = None, weights: Any = None, probabilities: Any = None) -> None:
        """Queue these rows of a batch by their lengths; None takes all."""
        size = len(batch)
        rows = torch.arange(size) if rows is None else rows
        if not len(rows):
            return
        self._layout = self._layout or Layout(batch.data, size)
        data = self._layout.batch([take(column, rows) for column in self._layout.columns(batch.data, size)])
        # A wait for the GPU: the lengths decide which batch an example goes to.
        lengths = self._trim.lengths(data).clamp(min=1).to("cpu", torch.float64)
        ranges = (lengths.log() / math.log(_RATIO) - 1e-9).ceil().to(torch.int64)
        weights = batch.weights if weights is None else weights
        chances = (batch.probabilities if probabilities is None else probabilities)[rows]
        ids = None if batch.ids is None else batch.ids[rows]
        for number in torch.unique(ranges).tolist():
            some = (ranges == number).nonzero().flatten()
            trimmed = self._trim.trim(data, int(lengths[some].max()))
            columns = [take(column, some) for column in self._layout.columns(trimmed, len(rows))]
            piece = Piece(columns, None if ids is None else ids[some], weights[some], chances[some])
            self._ranges.setdefault(number, deque()).append(piece)
        self.run.stats.queued = sum(map(self._count, self._ranges))

    def _joined(self, number: int, count: int) -> Batch:
        """Take the first examples of a range as a batch."""
        assert self._layout is not None
        return join_pieces(take_first(self._ranges[number], count), self._layout, self._trim)

    def _rest(self) -> Batch | None:
        """Take a batch of what is left at the end; None if nothing is."""
        numbers = sorted(number for number in self._ranges if self._ranges[number])
        for number, longer in zip(numbers, [*numbers, None][1:], strict=True):
            size = min(self._count(number), self._size(number))
            batch = self._joined(number, size)
            if longer is None or size == self._size(number):
                # Cut, because examples on their way through several ranges were padded to the longest in each.
                return replace(batch, data=self._trim.trim(batch.data, int(self._trim.lengths(batch.data).max())))
            assert self._layout is not None
            piece = Piece(self._layout.columns(batch.data, size), batch.ids, batch.weights, batch.probabilities)
            self._ranges[longer].append(piece)
        return None

    def state_dict(self) -> dict[str, Any]:
        names, layout = ([], None) if self._layout is None else (self._layout.names(), self._layout.state_dict())
        ranges = {
            str(number): [[saved(p.columns, names), p.ids, p.weights.clone(), p.probabilities.clone()] for p in pieces]
            for number, pieces in self._ranges.items()
        }
        own = {"layout": layout, "ranges": ranges, "is_over": self._is_over}
        return {"own": own, "source": self.source.state_dict()}
