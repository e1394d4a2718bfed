"""Slots, for frameworks that count batches: as many per epoch as plain training has batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from selective_backprop.loader.selective_loader import SelectiveLoader

_logger = logging.getLogger(__name__)


class Slots:
    """Gives out a loader's batches in exactly len() slots per epoch. A slot is a training batch or None.

    Selection depends on the weights after each training step, so nobody knows beforehand which batch of an epoch is the
    last. Frameworks need to know, for validation, gradient accumulation and learning rates. They fetch a batch ahead to
    find out, or stop at len(). There are as many slots as plain training has batches, so they can be counted, and all
    ranks have equally many. Batches come in step with the candidates offered.

    Args:
        loader: the loader that selects.
        window: number of slots that belong together, such as those between two optimizer steps. Either all of them have
            a batch, or none has. Only an epoch's last batches may begin in the middle of a window.

    >>> import torch, selective_backprop as sb
    >>> data = [(torch.randn(4), i % 2) for i in range(64)]
    >>> train_loader = torch.utils.data.DataLoader(data, batch_size=8)
    >>> loss_fn = torch.nn.CrossEntropyLoss()
    >>> loader = sb.SelectiveLoader(train_loader, torch.nn.Linear(4, 2), loss_fn, sb.random_backprop(0.5))
    >>> slots = list(Slots(loader))
    >>> len(slots), None in slots, sum(len(slot[1]) for slot in slots if slot is not None) == loader.stats.trained
    (8, True, True)
    """

    def __init__(self, loader: SelectiveLoader, window: int = 1) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.loader = loader
        self.window = window
        self._length = len(loader)  # in the midst of a planned epoch, the loader's own length is the number planned
        self._given = 0  # slots of this epoch given out
        self._next: list[bool] = []  # slots that are decided: whether each has a batch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """Give out the slots of one epoch, or the rest of the one that was under way when the state was saved."""
        stepper = self.loader.stepper
        if stepper.epoch is not None:
            self.end_epoch()  # the iteration before this one was left early
        stepper.begin()
        epoch = stepper.epoch
        while stepper.epoch is epoch and self._given < len(self):
            yield self._slot()
            stepper.end_step()
        if stepper.epoch is epoch:
            self.end_epoch()

    def end_epoch(self) -> None:
        """End the epoch. Slots that have not been given out are dropped."""
        self.loader.stepper.end_epoch()
        self._given, self._next = 0, []

    def _slot(self) -> Any:
        if not self._next:
            self._next = self._decide()
        self._given += 1
        batch = self.loader.stepper.take() if self._next.pop(0) else None
        return None if batch is None else batch.data

    def _decide(self) -> list[bool]:
        """Offer candidates until it is known whether the next slots have batches."""
        stepper, window = self.loader.stepper, self.window
        assert stepper.epoch is not None
        has_more = True
        while has_more:
            if self._given < self._last_window:
                if stepper.num_ready >= window:
                    return [True] * window
                # Slots may stay empty only if those after them suffice, even if all further candidates are selected.
                # The small number corrects the rounding of the fraction.
                offered = stepper.fraction * len(self) + 1e-6
                if offered >= self._given + window + stepper.epoch.most_ready:
                    return [False] * window
            # Frameworks stop after len() batches, without asking for one more, at which a sampler may draw once more.
            generators = self.loader.generators() if stepper.fraction == 1 else []
            states = [generator.get_state() for generator in generators]
            has_more = stepper.offer()
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        return self._last_slots(stepper.num_ready)

    @property
    def _last_window(self) -> int:
        """The slot with which the epoch's last window begins, which may be shorter."""
        return (len(self) - 1) // self.window * self.window

    def _last_slots(self, num_batches: int) -> list[bool]:
        """Decide about the rest of the epoch, when all its candidates have been offered.

        Whole windows come first. What remains comes last, because frameworks make a step after the last slot.
        """
        left = len(self) - self._given
        if num_batches > left:
            _logger.warning(
                "%d training batches are dropped at the end of this epoch: more were selected than your loader has "
                "batches, because its batches are of different sizes. Pass batch_size=",
                num_batches - left,
            )
            num_batches = left
        in_windows = min(num_batches, self._last_window - self._given) // self.window * self.window
        return [True] * in_windows + [False] * (left - num_batches) + [True] * (num_batches - in_windows)

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loader.state_dict(), "given": self._given, "next": list(self._next)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        self._given, self._next = state["given"], list(state["next"])
