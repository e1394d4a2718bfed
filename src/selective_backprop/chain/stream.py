"""Stream: candidates from any other iterable of batches, which have no ids. It resumes by the iterable's own state."""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from selective_backprop.chain.id_batches import require_one_size
from selective_backprop.chain.ids import Options
from selective_backprop.chain.load import prepared
from selective_backprop.chain.user_loader import generator_owners, generators_of, length_of, untouched_generators
from selective_backprop.chain.with_length import WithLength
from selective_backprop.inference import random_states, set_random_states
from selective_backprop.rows import count_rows
from selective_backprop.run import Run
from selective_backprop.types import Batch, Candidates

_END = object()
_logger = logging.getLogger(__name__)


class UserStream:
    """The user's iterable of batches, from one epoch to the next.

    Args:
        loader: the user's iterable, in a `WithLength` or not.
    """

    def __init__(self, loader: Any) -> None:
        self.told_length = loader.num_batches if isinstance(loader, WithLength) else None
        """Batches per epoch according to the user."""
        self.learned_length: int | None = None
        """Batches of the last whole epoch, if they were not as many as the user said."""
        self.loader = loader.loader if isinstance(loader, WithLength) else loader
        self.stateful = _keeps_its_place(self.loader)
        """What saves and restores the place in an epoch; None if nothing does."""
        self.has_offered = False
        """Whether any epoch has had a batch."""
        self.finished = False
        """Whether the last epoch went to its end."""
        self.ended: dict[str, Any] | None = None
        """The loader's own state at the end of the epoch before a resume."""
        self._resumed: Any = None  # a stream that remembers the place at which it was resumed

    @property
    def num_batches(self) -> int | None:
        """Candidate batches per epoch; None if not known."""
        length = length_of(self.loader)
        return length if length is not None else self.learned_length or self.told_length

    def begin(self) -> Iterator[Any]:
        """Begin an epoch."""
        ended, self.ended, resumed, self._resumed, self.finished = self.ended, None, self._resumed, None, False
        if resumed is not None:
            resumed.load_state_dict(None)
        elif ended is not None and self.stateful is not None:
            return self._begin_after(ended)
        return iter(self.loader)

    def _begin_after(self, ended: dict[str, Any]) -> Iterator[Any]:
        """Begin an epoch with a loader that keeps its own place, from its state at the end of the epoch before."""
        before = self._random_states()
        iter(self.loader)
        begun = self._random_states()  # as in a run that never stopped, which began this epoch once
        self.stateful.load_state_dict(ended)
        batches = iter(self.loader)  # torchdata's loader begins twice, if it has come to the end of its data
        self._set_random_states(begun)
        if (first := next(batches, _END)) is not _END:
            return itertools.chain([first], batches)
        self._set_random_states(before)  # the loader was still at that end, and its next epoch begins now
        return iter(self.loader)

    def _random_states(self) -> list[Any]:
        generators = generators_of(generator_owners(self.loader))
        return [random_states(torch.device("cpu")), *(generator.get_state() for generator in generators)]

    def _set_random_states(self, states: list[Any]) -> None:
        set_random_states(states[0], torch.device("cpu"))
        for generator, state in zip(generators_of(generator_owners(self.loader)), states[1:], strict=True):
            generator.set_state(state)

    def resume(self, inner: dict[str, Any] | None, *, finished: bool) -> Iterator[Any]:
        """Go on with an epoch, from the loader's own state."""
        # A stream of `datasets` would begin all later epochs, too, at the place that is loaded here.
        self._resumed = _stream_of_datasets(self.loader)
        if finished:
            self.ended = inner if self._resumed is None else None
            return iter(())  # iter() of a loader that saves its own state would start the next epoch
        if self.stateful is None:
            raise ValueError(
                f"the state has the place of a loader that saves it, but your {type(self.loader).__name__} has no "
                "load_state_dict: resume with the same kind of loader"
            )
        self.stateful.load_state_dict(inner)
        with untouched_generators(self.loader):
            return iter(self.loader)

    def own_state(self) -> dict[str, Any] | None:
        """Return the state by which the loader finds its place again; None if it has none."""
        state: dict[str, Any] | None = None if self.stateful is None else self.stateful.state_dict()
        return None if state is None or _only_counts(state) else state

    def state_between_epochs(self) -> dict[str, Any] | None:
        """Return what a loader that keeps its own place must know to begin the next epoch; None if nothing."""
        if self.ended is not None or not self.finished or _stream_of_datasets(self.loader) is not None:
            return self.ended
        return self.own_state()


class Stream:
    """The candidates of an epoch of a loader without ids.

    Args:
        user: the user's loader.
        run: counts.
        options: what the user said about batches.
        state: of an epoch that was under way; None begins one.
    """

    step = None  # there are no ids

    def __init__(self, user: UserStream, run: Run, options: Options, state: dict[str, Any] | None = None) -> None:
        self.user, self.run, self.options = user, run, options
        own: dict[str, Any] = (
            {"position": 0, "finished": False, "size": None, "inner": None} if state is None else state
        )
        self._position, self._finished, self._size = own["position"], own["finished"], own["size"]
        self.total = user.num_batches or 0
        """Batches of this epoch; 0 if not known."""
        self.most_candidates = self.total * (options.candidate_size or 0)
        """The most candidates that this epoch can have; 0 if not known."""
        self.fraction = self._fraction()
        """Fraction of the epoch loaded; 0 if its length is not known."""
        loader: Any = user.loader
        if state is None and run.epoch and getattr(loader, "persistent_workers", False) and loader._iterator is None:
            with untouched_generators(loader):  # a run that never stopped has started these workers before
                iter(loader)
        self._batches = user.begin() if state is None else user.resume(own["inner"], finished=self._finished)

    def _fraction(self) -> float:
        return min(1.0, self._position / self.total) if self.total else 0.0

    def next(self) -> Batch | None:
        """Load the next batch; None at the end."""
        self.run.stats.switch("loading")
        data = None if self._finished else next(self._batches, _END)
        if self._finished or data is _END:
            self._end()
            return None
        self._position, self.user.has_offered = self._position + 1, True
        data = prepared(data, None, self.run.epoch, self.options)
        size = count_rows(data)
        if self.options.needs_one_size:
            self._size = self._size or size
            require_one_size(torch.tensor([self._size, size]))
        self.fraction = self._fraction()
        return Batch(data, None, torch.ones(size), torch.ones(size, dtype=torch.float64))

    def _end(self) -> None:
        if self._finished:
            return
        self._finished, user = True, self.user
        user.finished = True
        if not self._position and user.has_offered and iter(user.loader) is user.loader:
            raise ValueError(
                f"your loader is an iterator (a {type(user.loader).__name__}), which can be used only once, and "
                "an earlier epoch used it up. Pass something that starts anew for every epoch, such as a DataLoader, a "
                "list, or an object whose __iter__ makes a new generator"
            )
        told = user.learned_length or user.told_length
        if told not in (None, self._position) and self._position:
            user.learned_length = self._position
            _logger.warning(
                "the epoch had %d candidate batches, and your WithLength said %d: progress was wrong within the epoch, "
                "and so was a learning rate by step_by_progress. Pass num_batches=%d",
                self._position,
                told,
                self._position,
            )

    def stand_in(self) -> Candidates | None:
        """Return None: a stream cannot be asked for examples."""
        return None

    def state_dict(self) -> dict[str, Any]:
        inner = self.user.own_state()
        if inner is None and not self._finished:
            raise ValueError(
                f"your {type(self.user.loader).__name__} does not keep its place (it has no state_dict, or that of a "
                "stream without one), so a run cannot go on in the middle of its epoch: save between epochs, or give "
                "it a state_dict and load_state_dict, as datasets and torchdata's StatefulDataLoader do"
            )
        return {"position": self._position, "finished": self._finished, "size": self._size, "inner": inner}


def _stream_of_datasets(loader: Any) -> Any:
    """Return the loader's data if it is an IterableDataset of Hugging Face's `datasets`, else None."""
    kind = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    stream = getattr(loader, "dataset", None)
    return stream if kind is not None and isinstance(stream, kind) else None


def _keeps_its_place(loader: Any) -> Any:
    """Return what saves and restores the place in an epoch: the loader itself, or its stream of data; None if neither.

    Without workers, a DataLoader takes from its stream just the examples of the batches that it has returned. So the
    stream's own state, as that of an IterableDataset of Hugging Face, is the place.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    if not isinstance(loader, DataLoader) or loader.num_workers or not isinstance(loader.dataset, IterableDataset):
        return None
    stream: Any = loader.dataset
    if not hasattr(stream, "load_state_dict") or not callable(getattr(stream, "state_dict", None)):
        return None
    needed = [p for p in inspect.signature(stream.state_dict).parameters.values() if p.default is p.empty]
    return None if needed else stream  # a StreamingDataset must be told its place, which its own loader counts


def _only_counts(state: dict[str, Any]) -> bool:
    """Whether this is the state of a StatefulDataLoader whose stream has none: it has a number of batches only.

    The loader would load and drop that many, and count them twice from then on, so that a second resume drops more than
    were given out.
    """
    states = _states_of_stream(state)
    return bool(states) and all(one is None for one in states)


def _states_of_stream(state: dict[str, Any]) -> list[Any]:
    """List what a StatefulDataLoader saves of its stream and its iterator, of each worker if there are any."""
    found = []
    for name, value in state.items():
        if name in ("dataset_state", "dataset_iter_state"):
            found.append(value)
        elif isinstance(value, dict):
            found += _states_of_stream(value)
    return found
