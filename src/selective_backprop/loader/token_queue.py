"""TokenQueue: joins selected examples of similar length into training batches of about as many tokens each.

# T = length of an example, after its padding is cut off
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from selective_backprop.batches.layout import Column, take_rows
from selective_backprop.batches.padding import PadToLongest
from selective_backprop.loader.queue import Queue
from selective_backprop.types import Batch, Selection

_RATIO = 2**0.25  # of the longest and the shortest example that may share a batch, so little is padded


class TokenQueue(Queue):
    """Holds selected examples by length. A batch has as many of similar length as fit a number of tokens, padded.

    Each range of lengths has a queue of its own. When the epoch ends, what is left moves to the next longer range, so
    that only a few smaller batches remain.

    Args:
        batch_tokens: the most tokens in a batch, padding included. A longer example is a batch of its own.
        pad: knows where padding is, and pads examples to the same length.
        device: where examples are.
    """

    def __init__(self, batch_tokens: int, pad: PadToLongest, device: torch.device | str = "cpu") -> None:
        super().__init__(batch_tokens, pad, None, device)
        self._tokens, self._trim = batch_tokens, pad
        self._by_length: dict[int, Queue] = {}
        self._is_over = False

    def __len__(self) -> int:
        return super().__len__() + sum(map(len, self._by_length.values()))

    @property
    def num_ready(self) -> int:
        ready = super().num_ready + sum(queue.num_ready for queue in self._by_length.values())
        return ready + (self._num_rest_batches if self._is_over else 0)

    @property
    def _num_rest_batches(self) -> int:
        """Number of smaller batches that remain after the full ones."""
        count = left = 0
        for _, queue in sorted(self._by_length.items()):
            assert queue.batch_size is not None
            if rest := len(queue) % queue.batch_size:
                full, left = divmod(left + rest, queue.batch_size)
                count += full
        return count + (left > 0)

    def set_batch_size(self, batch_size: int) -> None:
        """Do nothing: the number of examples in a batch follows from their lengths."""

    def add(
        self,
        columns: list[Column],
        selection: Selection,
        ids: Tensor | None,
        counts: list[int] | None = None,
        *,
        keeps_all: bool = False,
    ) -> None:
        positions = selection.positions
        if not positions.numel():
            return
        assert self.layout is not None
        batch = self.layout.batch([take_rows(column, positions) for column in columns])
        # A wait for the GPU: the lengths decide which batch an example goes to.
        lengths = self._trim.lengths(batch).clamp(min=1).to("cpu", torch.float64)
        ranges = (lengths.log() / math.log(_RATIO) - 1e-9).ceil().to(torch.int64)
        probabilities = selection.probabilities[positions]
        own_ids = None if ids is None else ids[positions]
        for number in torch.unique(ranges).tolist():
            rows = (ranges == number).nonzero().flatten()
            trimmed = self._trim.trim(batch, int(lengths[rows].max()))
            chosen = Selection(rows, selection.weights[rows], probabilities)
            self._queue_of(number).add(self.layout.columns(trimmed), chosen, own_ids)

    def _queue_of(self, number: int) -> Queue:
        if number not in self._by_length:
            longest = max(1, math.floor(_RATIO**number + 1e-6))
            queue = Queue(max(1, self._tokens // longest), self._trim, device=self._device)
            self._by_length[number] = queue
        if self.layout is not None:
            self._by_length[number].set_layout(self.layout)
        return self._by_length[number]

    def pop(self) -> Batch | None:
        if (batch := super().pop()) is not None:  # a batch that passes unchanged
            return batch
        ready = next((queue.pop() for queue in self._by_length.values() if queue.num_ready), None)
        return self._pop_rest() if ready is None and self._is_over else ready

    def finish(self, *, drop_last: bool) -> int:
        """Prepare what is left for the end of the epoch: it would wait long for others of its length."""
        self._is_over = True
        return 0

    def _pop_rest(self) -> Batch | None:
        """Take a batch of what is left; None if nothing is."""
        numbers = sorted(number for number, queue in self._by_length.items() if len(queue))
        for number, longer in zip(numbers, [*numbers, None][1:], strict=True):
            queue = self._by_length[number]
            batch = queue.pop()
            if batch is None:
                queue.finish(drop_last=False)
                batch = queue.pop()
            assert batch is not None and self.layout is not None
            if longer is None or len(batch) == queue.batch_size:
                # Cut, because examples on their way through several queues were padded to the longest in each.
                return replace(batch, data=self._trim.trim(batch.data, int(self._trim.lengths(batch.data).max())))
            everything = Selection(torch.arange(len(batch)), batch.weights, batch.probabilities)
            self._by_length[longer].add(self.layout.columns(batch.data), everything, batch.ids)
        return None

    def move(self, device: torch.device) -> None:
        super().move(device)
        for queue in self._by_length.values():
            queue.move(device)

    def state_dict(self) -> dict[str, Any]:
        by_length = {str(number): queue.state_dict() for number, queue in self._by_length.items()}
        return super().state_dict() | {"by_length": by_length, "is_over": self._is_over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "by_length" not in state:
            raise ValueError("the state was saved without batch_tokens=: leave it out here too, or start a new run")
        super().load_state_dict(state)
        self._is_over = state["is_over"]
        self._by_length = {}
        for number, saved in state["by_length"].items():
            self._queue_of(int(number)).load_state_dict(saved)
