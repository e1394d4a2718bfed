"""A loader for frameworks that count batches. It yields as many slots per epoch as plain training has batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from selective_backprop.loader.feedback import LOSS_CALL, WEIGHTS_NAME
from selective_backprop.loader.selective_loader import SelectiveLoader


class PacedLoader(SelectiveLoader):
    """Gives out exactly len() slots per epoch, one for each candidate batch. A slot is a full training batch or None.

    Selection depends on the weights after each training step, so nobody knows beforehand which batch of an epoch is the
    last. Frameworks need to know, for validation, gradient accumulation and learning rates. They fetch a batch ahead to
    find out, or stop at len(). There are as many slots as plain training has batches, so they can be counted, and all
    ranks have equally many.

    Args:
        window: number of slots that belong together, such as those between two optimizer steps. Either all of them have
            a batch, or none has. The last window of an epoch may be shorter, and may begin with slots without a batch.
        loss_call, weights_name: what errors tell the framework's users to call instead of `loader.loss`, and to read
            instead of `loader.batch.weights`.
        options: those of SelectiveLoader.

    >>> import torch, selective_backprop as sb
    >>> data = [(torch.randn(4), i % 2) for i in range(64)]
    >>> train_loader = torch.utils.data.DataLoader(data, batch_size=8)
    >>> loss_fn = torch.nn.CrossEntropyLoss()
    >>> loader = PacedLoader(train_loader, torch.nn.Linear(4, 2), loss_fn, sb.random_backprop(0.5), num_epochs=1)
    >>> slots = list(loader)
    >>> len(slots), None in slots, sum(len(slot[1]) for slot in slots if slot is not None) == loader.stats.trained
    (8, True, True)
    """

    puts_back = False  # a slot counts even if the caller did not train on it

    def __init__(
        self,
        *arguments: Any,
        window: int = 1,
        loss_call: str = LOSS_CALL,
        weights_name: str = WEIGHTS_NAME,
        **options: Any,
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        super().__init__(*arguments, **options)
        self.call_in_errors(loss=loss_call, weights=weights_name)
        self.slot = 0
        """Number of slots of this epoch given out."""
        self._window = window
        self._pending: list[bool] = []  # slots of the window under way: whether each has a batch
        self._loaded = False

    def epoch_batches(self) -> Iterator[Any]:
        loaded, self._loaded = self._loaded, False
        if loaded and not self.in_epoch and 0 < self.slot < len(self):
            yield from self._last_slots()  # the state was saved after the last candidates, before the last slots
            return
        if not loaded or self.slot == len(self):
            self.slot, self._pending = 0, []
        self.begin_epoch()
        yield from self._windows()
        while self.offer():
            yield from self._windows()
        yield from self._windows()
        super().end_epoch()
        yield from self._last_slots()

    def end_epoch(self) -> None:
        """End the epoch. Slots that have not been given out are dropped."""
        super().end_epoch()
        self.slot, self._pending = len(self), []

    def _last_slots(self) -> Iterator[Any]:
        """Give out the slots that are left after the last candidates. Those with a batch come last."""
        yield from self._windows(is_over=True)
        if self.ends_with_rest:
            self.queue.even_out()
        size = len(self) - self.slot
        count = min(size, self.num_left)
        self._pending = [False] * (size - count) + [True] * count  # the last one counts as the end of a window
        yield from self._slots()

    def _windows(self, *, is_over: bool = False) -> Iterator[Any]:
        """Give out all windows but the epoch's last that have their batches, or whose candidates have been offered."""
        yield from self._slots()
        offered = 1.0 if is_over else self.epochs_done - self.epoch
        end = (len(self) - 1) // self._window * self._window
        while self.slot < end:
            ready = self.num_ready >= self._window
            # The small number corrects the rounding of the fraction.
            if not ready and offered * len(self) + 1e-6 < self.slot + self._window:
                return
            self._pending = [ready] * self._window
            yield from self._slots()

    def _slots(self) -> Iterator[Any]:
        while self._pending:
            self.slot += 1
            if not self._pending.pop(0):
                yield None
            elif (batch := self.take(rest=True)) is not None:
                yield batch.data
                self.end_step()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slot": self.slot, "pending": list(self._pending)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        if not {"slot", "pending"} <= state.keys():
            raise ValueError("saved by a SelectiveLoader outside of Lightning, which has no slots: load it there")
        super().check_state_dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.slot, self._pending, self._loaded = state["slot"], list(state["pending"]), True
